//! What every script promises, whatever it does: without a right it changes nothing or does all of it, and it works on a
//! server that is out of memory.

use std::fmt;

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

impl Contract<'_> {
    /// Takes each of these commands away, and the right to publish.
    pub fn holds_without_a_right(&self, commands: &str) {
        let server = Server::start();
        let admin = &mut server.control();
        let missing = commands.split_whitespace();
        let missing = missing.map(|command| format!("-{command}"));
        let (mut refused, mut runs) = (0, 0);
        for missing in missing.chain(["resetchannels".to_owned()]) {
            let all = ["reset", "on", "nopass", "~*", "&*", "+@all", &missing];
            admin.run(&[&["ACL", "SETUSER", "u"], &all[..]].concat());
            let user = &mut server.control();
            user.run(&["AUTH", "u", "x"]);
            let mut bites = 0;
            for call in self.calls {
                for state in self.states {
                    bites += usize::from(self.is_refused(admin, user, *call, state, &missing));
                    runs += 1;
                }
            }
            assert!(bites > 0, "{missing}: nothing was refused");
            refused += bites;
        }
        assert!(refused > runs / 5, "{refused} of {runs} runs were refused");
    }

    fn is_refused(
        &self,
        admin: &mut Control,
        user: &mut Control,
        call: Call<'_>,
        state: &str,
        missing: &str,
    ) -> bool {
        let what = format!("{missing}: {call:?} of {state}");
        (self.set)(admin, state);
        (self.run)(admin, call);
        let complete = (self.seen)(admin);
        (self.set)(admin, state);
        let answer = (self.run)(user, call);
        let after = (self.seen)(admin);
        let failed = answer.starts_with("error");
        let own = self.without_own_lease;
        assert!(
            after == state || after == complete || own(&after) == own(state),
            "{what}: {after}, complete is {complete}"
        );
        assert!(failed || after == complete, "{what}: a false yes, {after}");
        failed
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
