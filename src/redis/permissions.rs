//! Which permissions a client's user lacks for a lock.
//!
//! Every command that the client sends, or that its scripts call, is sent once by itself, in a form without effect. That
//! finds all that is missing in one run: a script would stop at the first refusal, and without EVAL there is none.
//! The connections are opened for this alone, and without what may be missing too: a refusal disturbs no other call.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::Redis;
use super::call::ServerScript;
use super::connection::{ChannelConnection, Connection, Task};
use super::settings::{Kind, Settings};
use super::transport::{Arg, BoxFuture, Change, ConnectionError, Reply};
use crate::error::{Denied, Error, Operation, RefusalKind, missing_channel, pattern_of};
use crate::kind::LockKind;
use crate::names::wire::{Announce, LockName};
use crate::redis::node::fence;

/// A permission, and a command that needs it.
struct Question {
    permission: &'static str,
    name: &'static str,
    args: Vec<Arg>,
}

fn needs(permission: &'static str, name: &'static str, args: impl Into<Vec<Arg>>) -> Question {
    let args = args.into();
    Question {
        permission,
        name,
        args,
    }
}

impl Redis {
    /// Returns the permissions that the server of this lock refuses, as `ACL SETUSER` takes them. `absent` is the name
    /// of no key, field or channel, and `script` one that changes nothing.
    pub(crate) async fn missing_permissions(
        &self,
        script: &'static ServerScript,
        lock: &LockName,
        absent: &Arc<str>,
        asks_replicas: bool,
    ) -> Result<Vec<String>, Error> {
        let settings = self.route(lock.key()).settings_for(Operation::Inspecting)?;
        let announce = Some(self.announce()).filter(|_| lock.kind().announces());
        let classic = announce.is_some_and(Announce::hears_classic);
        let sharded = announce.is_some_and(Announce::hears_sharded);
        let mut questions = for_every_lock(script, lock, absent);
        if classic {
            questions.push(needs(
                "+publish",
                "PUBLISH",
                [text(absent), Arg::Fixed("0")],
            ));
        }
        if sharded {
            let (numsub, shards) = (Arg::Fixed("NUMSUB"), Arg::Fixed("SHARDNUMSUB"));
            questions.push(needs(
                "+spublish",
                "SPUBLISH",
                [text(absent), Arg::Fixed("0")],
            ));
            questions.push(needs("+pubsub|shardnumsub", "PUBSUB", [shards]));
            if announce == Some(Announce::Auto) {
                questions.push(needs("+pubsub|numsub", "PUBSUB", [numsub, text(absent)]));
            }
        }
        questions.extend(self.besides(&settings, asks_replicas));
        let mut asked = Asked {
            settings: settings.for_questions(),
            lock,
            channel: heard(lock, absent),
            commands: Vec::new(),
            keys: Vec::new(),
            are_reads_missing: false,
            is_channel_missing: false,
        };
        asked.commands(questions).await?;
        let channel = || vec![heard(lock, absent)];
        if classic {
            let unsubscribe = Change::Unsubscribe(channel());
            asked.change("+unsubscribe", unsubscribe).await?;
            asked
                .change("+subscribe", Change::Subscribe(channel()))
                .await?;
        }
        if sharded {
            asked.sharded_channel().await?;
        }
        Ok(asked.missing())
    }

    /// What not every client sends.
    fn besides(&self, settings: &Settings, asks_replicas: bool) -> Vec<Question> {
        let mut questions = Vec::new();
        if settings.fence {
            let fence = fence::without_effect();
            questions.extend(fence.map(|(permission, args)| needs(permission, "CLIENT", args)));
        }
        if settings.tracking {
            let words = [Arg::Fixed("TRACKING"), Arg::Fixed("OFF")];
            questions.push(needs("+client|tracking", "CLIENT", words));
        }
        if let Some(name) = &settings.client_name {
            let words = [Arg::Fixed("SETNAME"), text(name)];
            questions.push(needs("+client|setname", "CLIENT", words));
        }
        if let Some(number) = settings.database() {
            questions.push(needs("+select", "SELECT", [Arg::Number(number.into())]));
        }
        if asks_replicas {
            // None has to have anything.
            questions.push(needs("+wait", "WAIT", [Arg::Number(0), Arg::Number(0)]));
        }
        match &self.map.settings.kind {
            Kind::Server => {}
            Kind::Sentinel(..) => questions.push(needs("+role", "ROLE", [])),
            Kind::Cluster(_) => questions.extend([
                needs("+cluster|info", "CLUSTER", [Arg::Fixed("INFO")]),
                needs("+cluster|slots", "CLUSTER", [Arg::Fixed("SLOTS")]),
                needs("+cluster|myid", "CLUSTER", [Arg::Fixed("MYID")]),
                // It changes what the next command means: there is none.
                needs("+asking", "ASKING", []),
            ]),
        }
        questions
    }
}

/// What the scripts of the lock's kind call, what runs them, and what each connection sends.
fn for_every_lock(
    script: &'static ServerScript,
    lock: &LockName,
    absent: &Arc<str>,
) -> Vec<Question> {
    let key = || text(lock.key());
    let field = || [key(), text(absent)];
    let number = || Arg::Fixed("x");
    // What is no number is refused after the permissions, and before anything changes.
    let by_kind = match lock.kind() {
        LockKind::String => vec![
            needs("+get", "GET", [key()]),
            needs("+set", "SET", [key(), number(), Arg::Fixed("PX"), number()]),
        ],
        LockKind::Read | LockKind::Write => for_its_faces(lock, absent),
        LockKind::Plain | LockKind::Spin | LockKind::Fenced | LockKind::Fair => {
            let mut needed = vec![
                needs("+hget", "HGET", field()),
                needs("+hincrby", "HINCRBY", [key(), text(absent), number()]),
                needs("+hlen", "HLEN", [key()]),
                needs("+hkeys", "HKEYS", [key()]),
                needs("+hexists", "HEXISTS", field()),
            ];
            // It is not handed over.
            if !lock.kind().has_queue() {
                needed.push(needs("+hdel", "HDEL", field()));
            }
            if let Some(token) = lock.token() {
                needed.extend([
                    needs("+get", "GET", [text(token)]),
                    needs(
                        "+incr",
                        "EVAL",
                        [Arg::Fixed(RAISES), Arg::Number(2), key(), text(token)],
                    ),
                    needs("+persist", "PERSIST", [text(token)]),
                ]);
            }
            needed.extend(for_its_queue(lock, absent));
            needed
        }
    };
    let of_all = [
        needs(
            "+evalsha",
            "EVALSHA",
            [script.sha_word(), Arg::Number(1), key()],
        ),
        needs(
            "+eval",
            "EVAL",
            [script.source_word(), Arg::Number(1), key()],
        ),
        needs("+exists", "EXISTS", [key()]),
        needs("+pttl", "PTTL", [key()]),
        needs("+pexpire", "PEXPIRE", [key(), number()]),
        // On the lock it would have an effect.
        needs("+del", "DEL", [text(absent)]),
        needs("+time", "TIME", []),
        needs("+ping", "PING", []),
        needs("+client|id", "CLIENT", [Arg::Fixed("ID")]),
        needs("+info", "INFO", [Arg::Fixed("SERVER")]),
    ];
    of_all.into_iter().chain(by_kind).collect()
}

/// What the scripts of read-write locks call: for both parts, because a writer may read too.
fn for_its_faces(lock: &LockName, absent: &Arc<str>) -> Vec<Question> {
    let key = || text(lock.key());
    let field = || [key(), text(absent)];
    let number = || Arg::Fixed("x");
    let first_read = lock.first_read_of(absent);
    let set = [Arg::Text(first_read), number(), Arg::Fixed("PX"), number()];
    // An odd number of words is refused after the permissions, and before anything changes.
    let fields = [key(), text(absent), number(), text(absent)];
    vec![
        needs("+hget", "HGET", field()),
        needs("+hset", "HSET", fields),
        needs("+hdel", "HDEL", field()),
        needs("+hgetall", "HGETALL", [key()]),
        needs("+hincrby", "HINCRBY", [key(), text(absent), number()]),
        needs("+hlen", "HLEN", [key()]),
        needs("+hkeys", "HKEYS", [key()]),
        needs("+hexists", "HEXISTS", field()),
        needs("+set", "SET", set),
    ]
}

/// What only the scripts of fair locks call.
fn for_its_queue(lock: &LockName, absent: &Arc<str>) -> Vec<Question> {
    let Some([queue, places]) = lock.queue() else {
        return Vec::new();
    };
    let (queue, places, owner) = (|| text(queue), || text(places), || text(absent));
    let number = || Arg::Fixed("x");
    let appends = [Arg::Fixed(APPENDS), Arg::Number(1), queue(), owner()];
    vec![
        needs("+lindex", "LINDEX", [queue(), number()]),
        needs("+lpos", "LPOS", [queue(), owner()]),
        needs("+lrange", "LRANGE", [queue(), number(), number()]),
        needs("+lrem", "LREM", [queue(), number(), owner()]),
        needs("+persist", "PERSIST", [queue()]),
        needs("+rpush", "EVAL", appends),
        needs("+zscore", "ZSCORE", [places(), owner()]),
        needs("+zrange", "ZRANGE", [places(), number(), number()]),
        needs("+zadd", "ZADD", [places(), number(), owner()]),
        needs("+zrem", "ZREM", [places(), owner()]),
    ]
}

/// INCR in a form without an effect on a holder: on the lock while it is held, which is of another type. The number of
/// a free lock is raised, which does no harm.
const RAISES: &str = "local held = redis.pcall('exists', KEYS[1])\n\
    if type(held) == 'table' then return held.ok end\n\
    return redis.call('incr', held == 1 and KEYS[1] or KEYS[2])";

/// RPUSH in a form without an effect: what it appends is removed again, if that is permitted. Otherwise it is not asked.
const APPENDS: &str = "local may = redis.pcall('lrem', KEYS[1], 0, ARGV[1])\n\
    if type(may) == 'table' then return nil end\n\
    local appended = redis.pcall('rpush', KEYS[1], ARGV[1])\n\
    if type(appended) == 'number' then redis.call('lrem', KEYS[1], -1, ARGV[1]) end\n\
    return appended";

/// Calls one command after the other, and returns what each was refused with.
const CALLS: &str = "local refused, at = {}, 1\n\
    while at <= #ARGV do\n\
    local words = {}\n\
    for nth = 1, tonumber(ARGV[at]) do words[nth] = ARGV[at + nth] end\n\
    at = at + #words + 1\n\
    local answer = redis.pcall(unpack(words))\n\
    refused[#refused + 1] = type(answer) == 'table' and answer.err or ''\n\
    end\n\
    return refused";

/// What no script calls, and most servers refuse to scripts.
const OUTSIDE_OF_SCRIPTS: [&str; 10] = [
    "EVAL", "EVALSHA", "PING", "CLIENT", "INFO", "SELECT", "WAIT", "ROLE", "CLUSTER", "ASKING",
];

/// The permissions that are asked for by a script.
const BY_SCRIPT: [&str; 2] = ["+incr", "+rpush"];

/// The channel on which an owner hears of this lock.
fn heard(lock: &LockName, owner: &Arc<str>) -> Arc<str> {
    match lock.kind().has_queue() {
        true => lock.channel_of(owner),
        false => Arc::clone(lock.channel()),
    }
}

fn text(text: &Arc<str>) -> Arg {
    Arg::Text(Arc::clone(text))
}

/// One server that is asked, and what it has refused so far.
struct Asked<'a> {
    settings: Settings,
    lock: &'a LockName,
    channel: Arc<str>,
    commands: Vec<&'static str>,
    keys: Vec<Arc<str>>,
    /// Those that cover the read holds of a read-write lock.
    are_reads_missing: bool,
    is_channel_missing: bool,
}

impl Asked<'_> {
    /// Asks all at the same time: that takes one round trip.
    async fn commands(&mut self, questions: Vec<Question>) -> Result<(), Error> {
        let (connection, _task) = self.open().await?;
        let timeout = self.settings.command_timeout;
        let send = |question: &Question| connection.command(question.name, &question.args, timeout);
        let answers = all(questions.iter().map(send).collect()).await;
        for (question, answer) in questions.iter().zip(answers) {
            self.note(question.permission, answer)?;
        }
        self.in_a_script(&questions).await
    }

    /// Asks again for what scripts call, in a script: a server may refuse it there alone.
    async fn in_a_script(&mut self, asked: &[Question]) -> Result<(), Error> {
        let called = asked.iter().filter(|question| {
            !OUTSIDE_OF_SCRIPTS.contains(&question.name)
                && !BY_SCRIPT.contains(&question.permission)
        });
        let called: Vec<_> = called.collect();
        let mut args = vec![Arg::Fixed(CALLS), Arg::Number(1), text(self.lock.key())];
        for question in &called {
            args.push(Arg::Number(question.args.len() as i64 + 1));
            args.push(Arg::Fixed(question.name));
            args.extend(question.args.iter().cloned());
        }
        let (connection, _task) = self.open().await?;
        let answer = connection.command("EVAL", &args, self.settings.command_timeout);
        let answers = match answer.await {
            Ok(Reply::List(answers)) => answers,
            // Without EVAL there is nothing to ask, and that is found by itself.
            Err(problem) if !problem.is_about_the_command() => return Err(self.failed(problem)),
            _ => return Ok(()),
        };
        for (question, answer) in called.iter().zip(answers) {
            if let Reply::Text(error) = &answer
                && let RefusalKind::UnknownCommandInScript(_) = RefusalKind::read(error)
            {
                self.note_command(question.permission);
            }
        }
        Ok(())
    }

    fn note_command(&mut self, permission: &'static str) {
        if !self.commands.contains(&permission) {
            self.commands.push(permission);
        }
    }

    /// Asks for a change of the channels. After a refusal the answers of a connection are out of step, so each has a
    /// connection of its own.
    async fn change(&mut self, permission: &'static str, change: Change) -> Result<(), Error> {
        let (connection, _task) = self.open_channels().await?;
        let timeout = self.settings.command_timeout;
        let answer = connection.barrier(change, "redisson-lock".to_owned(), timeout);
        self.note_before_ping(permission, answer.await.map(Reply::Text))
    }

    async fn sharded_channel(&mut self) -> Result<(), Error> {
        let channels = [Arc::clone(&self.channel)];
        let timeout = self.settings.command_timeout;
        let (connection, _task) = self.open_channels().await?;
        for answer in connection.subscribe_sharded(&channels, timeout).await {
            self.note("+ssubscribe", answer.map(Reply::Number))?;
        }
        let (connection, _task) = self.open().await?;
        let unsubscribe = connection.command("SUNSUBSCRIBE", &channels.map(Arg::Text), timeout);
        self.note("+sunsubscribe", unsubscribe.await)
    }

    async fn open(&self) -> Result<(Connection, Task), Error> {
        let opened = Connection::open(&self.settings).await;
        opened.map_err(|problem| self.failed(problem))
    }

    async fn open_channels(&self) -> Result<(ChannelConnection, Task), Error> {
        let opened = ChannelConnection::open(&self.settings).await;
        opened.map_err(|problem| self.failed(problem))
    }

    /// The answer to a command and a PING after it is the first refusal of the two.
    fn note_before_ping(
        &mut self,
        permission: &'static str,
        answer: Result<Reply, ConnectionError>,
    ) -> Result<(), Error> {
        let ping = RefusalKind::NoPermission(Denied::Command("+ping".to_owned()));
        match answer {
            Err(ConnectionError::Refused(refusal)) if refusal.kind == ping => Ok(()),
            answer => self.note(permission, answer),
        }
    }

    fn note(
        &mut self,
        permission: &'static str,
        answer: Result<Reply, ConnectionError>,
    ) -> Result<(), Error> {
        let refusal = match answer {
            Ok(_) => return Ok(()),
            Err(ConnectionError::Refused(refusal)) if !refusal.kind.is_of_the_server() => refusal,
            // It says nothing about the permission.
            Err(problem) => return Err(self.failed(problem)),
        };
        // Any other refusal comes after the permissions.
        // A script says nothing about EVAL, and EVAL nothing about what it would have called.
        let denied = match (refusal.kind, permission) {
            (RefusalKind::NoPermissionInScript(denied), by) if BY_SCRIPT.contains(&by) => denied,
            (RefusalKind::NoPermission(denied), by) if !BY_SCRIPT.contains(&by) => denied,
            // The server does not have the command at all: to grant it does not help, and calls fail as without the right.
            (RefusalKind::UnknownCommandInScript(_), by) if BY_SCRIPT.contains(&by) => {
                Denied::Unnamed
            }
            (RefusalKind::UnknownCommand(_), by) if !BY_SCRIPT.contains(&by) => Denied::Unnamed,
            _ => return Ok(()),
        };
        match (denied, permission) {
            // Not those of the lock.
            (Denied::Key, "+del") | (Denied::Channel, "+publish" | "+spublish") => {}
            (Denied::Key, permission) => self.note_key(permission),
            (Denied::Channel, _) => self.is_channel_missing = true,
            (_, permission) => self.note_command(permission),
        }
        Ok(())
    }

    /// The key that the command with this permission is about.
    fn note_key(&mut self, permission: &str) {
        if permission == "+set" && self.lock.kind().has_faces() {
            self.are_reads_missing = true;
            return;
        }
        let [queue, places] = match self.lock.queue() {
            Some([queue, places]) => [Some(queue), Some(places)],
            None => [None; 2],
        };
        let other = match permission {
            "+get" | "+incr" => self.lock.token(),
            "+persist" => self.lock.token().or(queue),
            "+lindex" | "+lpos" | "+lrange" | "+lrem" | "+rpush" => queue,
            "+zscore" | "+zrange" | "+zadd" | "+zrem" => places,
            _ => None,
        };
        let key = other.unwrap_or_else(|| self.lock.key());
        if !self.keys.contains(key) {
            self.keys.push(Arc::clone(key));
        }
    }

    fn failed(&self, problem: ConnectionError) -> Error {
        problem.into_error(Operation::Inspecting, &self.settings.address)
    }

    fn missing(self) -> Vec<String> {
        let keys = self.keys.iter().map(|key| format!("~{}", pattern_of(key)));
        let reads = self.are_reads_missing.then(|| self.lock.all_reads());
        let channel = self
            .is_channel_missing
            .then(|| missing_channel(self.lock.channel(), self.lock.kind().has_queue()));
        let commands = self.commands.iter().map(|&command| command.to_owned());
        commands.chain(keys).chain(reads).chain(channel).collect()
    }
}

/// Waits for all of them at the same time; the first polls are in order.
async fn all<T>(mut waiting: Vec<BoxFuture<'static, T>>) -> Vec<T> {
    let mut ready: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, ready) in waiting.iter_mut().zip(&mut ready) {
            if ready.is_none()
                && let Poll::Ready(answer) = future.as_mut().poll(context)
            {
                *ready = Some(answer);
            }
        }
        match ready.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    ready.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::script::{ALL, commands, of_kind};

    /// `PUBLISH` and what comes with sharded channels are asked by the kind of channels.
    const BY_CHANNELS: [&str; 3] = ["+publish", "+spublish", "+pubsub"];

    /// Only guarded writes with an id need it.
    const OF_IDS: (&str, &str) = ("guarded", "+set");

    #[test]
    fn every_command_of_every_script_is_asked_for() {
        let mut compared = BTreeSet::new();
        for kind in LockKind::ALL {
            let lock = LockName::new(kind, "", "a").expect("a name");
            let scripts = of_kind(kind);
            let questions = for_every_lock(scripts[0], &lock, &"absent".into());
            let asked = |command: &str| {
                let mut questions = questions.iter();
                questions.any(|question| question.permission == command)
            };
            // A lock with a queue or with readers is not handed over.
            let is_passed = !kind.has_queue() && !kind.has_faces();
            let is_used = |script: &&ServerScript| is_passed || script.name != "pass";
            for script in scripts.into_iter().filter(is_used) {
                for command in commands(script.source) {
                    let command = command.as_str();
                    let elsewhere =
                        BY_CHANNELS.contains(&command) || (script.name, command) == OF_IDS;
                    let name = script.name;
                    assert!(elsewhere || asked(command), "{kind}: {command} of {name}");
                }
                compared.insert(script.name);
            }
        }
        let all: BTreeSet<_> = ALL.iter().map(|script| script.name).collect();
        assert_eq!(compared, all, "each is of some kind");
    }
}
