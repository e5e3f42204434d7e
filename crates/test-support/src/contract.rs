//! What every script promises, whatever it does: a second copy changes nothing, without a right it changes nothing or does
//! all of it, and it works on a server that is out of memory.

mod copies;
mod shown;

use std::fmt;

pub use copies::{RANDOM_CALLS, RandomCalls, Sent};
pub use shown::{
    Listener, clock, eval, hundreds, items, lease, number, rounded, seen_hash, set_hash, shown,
    text, units,
};

use crate::server::{Control, Server};

/// A script and its ARGV.
#[derive(Clone, Copy)]
pub struct Call<'a>(pub &'static str, pub &'a [&'a str]);

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)
    }
}

/// The calls of a kind's scripts, and the states in which each is made.
pub struct Contract<'a> {
    pub calls: &'a [Call<'a>],
    pub states: &'a [&'a str],
    /// Makes a state.
    pub set: fn(&mut Control, &str),
    /// Makes a call; its answer, or `error: ` and why.
    pub run: fn(&mut Control, Call<'_>) -> String,
    /// The state that there is.
    pub seen: fn(&mut Control) -> String,
    /// A state without the lease of our own hold, which a call that is refused may have raised before.
    pub without_own_lease: fn(&str) -> String,
}

/// What a call did without a right.
pub struct Attempt<'a> {
    pub what: String,
    pub call: Call<'a>,
    pub before: &'a str,
    pub after: String,
    /// What it leaves with every right.
    pub complete: String,
    pub failed: bool,
}

impl Contract<'_> {
    /// Makes a call in each state of a table, and again. A line has the state, the answer, the answer to the copy if that
    /// is another one, and the state after each of them: `=` if it is the one before.
    #[track_caller]
    pub fn rows(&self, call: Call<'_>, table: &str) {
        let server = Server::start();
        let control = &mut server.control();
        for row in lines(table) {
            let (before, first, second, after) = match row[..] {
                [before, answer, after] => (before, answer, answer, after),
                [before, first, second, after] => (before, first, second, after),
                _ => panic!("{row:?}"),
            };
            let after = if after == "=" { before } else { after };
            let what = format!("{before}: {call:?}");
            (self.set)(control, before);
            assert_eq!((self.seen)(control), before, "{what}: as it is written");
            assert_eq!((self.run)(control, call), first, "{what}");
            assert_eq!((self.seen)(control), after, "{what}");
            assert_eq!((self.run)(control, call), second, "{what}, again");
            assert_eq!((self.seen)(control), after, "{what}, again");
        }
    }

    /// What another party does between two copies of a call. A line has the call by its name, the state, the first answer,
    /// the calls that come between, the second answer, and the state after all of them.
    #[track_caller]
    pub fn rows_between(&self, calls: &[(&str, Call<'_>)], table: &str) {
        let call = |name: &str| {
            let found = calls.iter().find(|call| call.0 == name);
            found.unwrap_or_else(|| panic!("no call {name}")).1
        };
        let server = Server::start();
        let control = &mut server.control();
        for row in lines(table) {
            let [name, state, first, between, second, after] = row[..] else {
                panic!("{row:?}")
            };
            (self.set)(control, state);
            assert_eq!((self.run)(control, call(name)), first, "{row:?}");
            for name in between.split(", ") {
                (self.run)(control, call(name));
            }
            assert_eq!((self.run)(control, call(name)), second, "{row:?}");
            assert_eq!((self.seen)(control), after, "{row:?}");
        }
    }

    /// Takes each of these commands away, and the right to publish if `resetchannels` is among them. More than one of
    /// this many runs has to be refused.
    pub fn holds_without_a_right(&self, rights: &str, one_of: usize) {
        let own = self.without_own_lease;
        self.without_each_right(rights, one_of, |attempt| {
            let Attempt {
                what,
                before,
                after,
                ..
            } = attempt;
            let complete = &attempt.complete;
            assert!(
                after == before || after == complete || own(after) == own(before),
                "{what}: {after}, complete is {complete}"
            );
            assert!(
                attempt.failed || after == complete,
                "{what}: a false yes, {after}"
            );
        });
    }

    /// The same with a check of what each call does.
    pub fn without_each_right(&self, rights: &str, one_of: usize, check: impl Fn(&Attempt<'_>)) {
        let server = Server::start();
        let admin = &mut server.control();
        let (mut refused, mut runs) = (0, 0);
        for right in rights.split_whitespace() {
            let missing = match right {
                "resetchannels" => right.to_owned(),
                command => format!("-{command}"),
            };
            let all = [
                "reset", "on", "nopass", "~k", "~*{k}*", "&*", "+@all", &missing,
            ];
            admin.run(&[&["ACL", "SETUSER", "u"], &all[..]].concat());
            let user = &mut server.control();
            user.run(&["AUTH", "u", "x"]);
            let mut bites = 0;
            for call in self.calls {
                for state in self.states {
                    let attempt = self.attempt(admin, user, *call, state, &missing);
                    check(&attempt);
                    bites += usize::from(attempt.failed);
                    runs += 1;
                }
            }
            assert!(bites > 0, "{missing}: nothing was refused");
            refused += bites;
        }
        assert!(
            refused > runs / one_of,
            "{refused} of {runs} runs were refused"
        );
    }

    fn attempt<'a>(
        &self,
        admin: &mut Control,
        user: &mut Control,
        call: Call<'a>,
        before: &'a str,
        missing: &str,
    ) -> Attempt<'a> {
        let what = format!("{missing}: {call:?} of {before}");
        (self.set)(admin, before);
        (self.run)(admin, call);
        let complete = (self.seen)(admin);
        (self.set)(admin, before);
        let answer = (self.run)(user, call);
        let after = (self.seen)(admin);
        let has_lease = admin.pttl("k") != -1;
        assert!(
            has_lease || after == before,
            "{what}: a lock without a lease"
        );
        let failed = answer.starts_with("error");
        Attempt {
            what,
            call,
            before,
            after,
            complete,
            failed,
        }
    }

    /// Each script begins its changes with a command that is executed without memory.
    pub fn holds_without_memory(&self) {
        let server = Server::start();
        let control = &mut server.control();
        for call in self.calls {
            for state in self.states {
                (self.set)(control, state);
                let answer = (self.run)(control, *call);
                let complete = (self.seen)(control);
                (self.set)(control, state);
                control.run(&["CONFIG", "SET", "maxmemory", "1"]);
                let without = (self.run)(control, *call);
                control.run(&["CONFIG", "SET", "maxmemory", "0"]);
                assert_eq!(without, answer, "{state}: {call:?}");
                assert_eq!((self.seen)(control), complete, "{state}: {call:?}");
            }
        }
    }
}

/// The columns of each line, which `|` separates. Lines that begin with `//` are comments.
pub fn lines(table: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = table.lines().map(str::trim);
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    rows.map(|row| row.split('|').map(str::trim).collect())
}
