//! Which permissions a client's user lacks for a lock.
//!
//! Every command that the client sends, or that its scripts call, is sent once by itself, in a form without effect. That
//! finds all that is missing in one run: a script would stop at the first refusal, and without EVAL there is none.
//! The connections are opened for this alone, and without what may be missing too: a refusal disturbs no other call.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;

use super::Redis;
use super::call::ServerScript;
use super::connection::{Connection, PushReceiver, Task};
use super::settings::{Kind, Settings};
use super::transport::{Arg, BoxFuture, Change, ConnectionError, Delivery, Reply};
use crate::error::{Denied, Error, Operation, RefusalKind, missing_channel, pattern_of};
use crate::kind::LockKind;
use crate::names::wire::{Announce, LockName};

/// Which clients and locks need a permission.
type When = fn(&CheckContext<'_>) -> bool;

const ALWAYS: When = |_| true;
const STRING: When = |context| context.lock.kind() == LockKind::String;
const HASH: When = |context| !STRING(context);
/// Both parts need all, because a writer may read too.
const FACES: When = |context| context.lock.kind().has_faces();
const FENCED: When = |context| context.lock.kind().has_token();
const FAIR: When = |context| context.lock.kind().has_queue();
const UNFAIR: When = |context| HASH(context) && !FAIR(context);
const CLASSIC: When = |context| context.announce.is_some_and(Announce::hears_classic);
const SHARDED: When = |context| context.announce.is_some_and(Announce::hears_sharded);
const AUTO: When = |context| context.announce == Some(Announce::Auto);
const FENCE: When = |context| context.settings.fence;
const TRACKING: When = |context| context.settings.tracking;
const NAMED: When = |context| context.settings.client_name.is_some();
const DATABASE: When = |context| context.settings.database().is_some();
const REPLICAS: When = |context| context.asks_replicas;
const SENTINEL: When = |context| matches!(context.kind, Kind::Sentinel(..));
const CLUSTER: When = |context| matches!(context.kind, Kind::Cluster(_));

/// Who needs which permission, and a command that needs it. They are asked for in this order.
///
/// What is in braces depends on the lock and the client: see [`CheckContext::word`]. The `x` stands where a number has to:
/// it is refused after the permissions, and before anything changes.
const PERMISSIONS: &[(When, &str, &str)] = &[
    (ALWAYS, "+evalsha", "EVALSHA {sha} 1 {lock}"),
    (ALWAYS, "+eval", "EVAL {source} 1 {lock}"),
    (ALWAYS, "+exists", "EXISTS {lock}"),
    (ALWAYS, "+pttl", "PTTL {lock}"),
    (ALWAYS, "+pexpire", "PEXPIRE {lock} x"),
    // On the lock it would have an effect.
    (ALWAYS, "+del", "DEL {absent}"),
    (ALWAYS, "+time", "TIME"),
    (ALWAYS, "+ping", "PING"),
    (ALWAYS, "+info", "INFO SERVER"),
    (STRING, "+get", "GET {lock}"),
    (STRING, "+set", "SET {lock} x PX x"),
    (HASH, "+hget", "HGET {lock} {absent}"),
    (HASH, "+hincrby", "HINCRBY {lock} {absent} x"),
    (HASH, "+hlen", "HLEN {lock}"),
    (HASH, "+hkeys", "HKEYS {lock}"),
    (HASH, "+hexists", "HEXISTS {lock} {absent}"),
    // A fair lock is not handed over.
    (UNFAIR, "+hdel", "HDEL {lock} {absent}"),
    // A field without a value is refused after the permissions, and before anything changes.
    (FACES, "+hset", "HSET {lock} {absent} x {absent}"),
    (FACES, "+hgetall", "HGETALL {lock}"),
    (FACES, "+set", "SET {read} x PX x"),
    (FENCED, "+get", "GET {token}"),
    (FENCED, "+incr", "EVAL {raises} 2 {lock} {token}"),
    (FENCED, "+persist", "PERSIST {token}"),
    (FAIR, "+lindex", "LINDEX {queue} x"),
    (FAIR, "+lpos", "LPOS {queue} {absent}"),
    (FAIR, "+lrange", "LRANGE {queue} x x"),
    (FAIR, "+lrem", "LREM {queue} x {absent}"),
    (FAIR, "+persist", "PERSIST {queue}"),
    (FAIR, "+rpush", "EVAL {appends} 1 {queue} {absent}"),
    (FAIR, "+zscore", "ZSCORE {places} {absent}"),
    (FAIR, "+zrange", "ZRANGE {places} x x"),
    (FAIR, "+zadd", "ZADD {places} x {absent}"),
    (FAIR, "+zrem", "ZREM {places} {absent}"),
    (CLASSIC, "+publish", "PUBLISH {absent} 0"),
    (SHARDED, "+spublish", "SPUBLISH {absent} 0"),
    (SHARDED, "+pubsub|shardnumsub", "PUBSUB SHARDNUMSUB"),
    (AUTO, "+pubsub|numsub", "PUBSUB NUMSUB {absent}"),
    (FENCE, "+client|info", "CLIENT INFO"),
    // No client has this address.
    (FENCE, "+client|kill", "CLIENT KILL ID 1 ADDR 0.0.0.0:0"),
    (TRACKING, "+client|tracking", "CLIENT TRACKING OFF"),
    (NAMED, "+client|setname", "CLIENT SETNAME {name}"),
    (DATABASE, "+select", "SELECT {database}"),
    // No replica has to have anything.
    (REPLICAS, "+wait", "WAIT 0 0"),
    (SENTINEL, "+role", "ROLE"),
    (CLUSTER, "+cluster|info", "CLUSTER INFO"),
    (CLUSTER, "+cluster|slots", "CLUSTER SLOTS"),
    (CLUSTER, "+cluster|myid", "CLUSTER MYID"),
    // It changes what the next command means: there is none.
    (CLUSTER, "+asking", "ASKING"),
];

/// Decides which permissions are needed, and which keys and channels the commands use.
struct CheckContext<'a> {
    lock: &'a LockName,
    /// The name of no key, field or channel.
    absent: &'a Arc<str>,
    /// It changes nothing.
    script: &'static ServerScript,
    settings: &'a Settings,
    kind: &'a Kind,
    /// `None`: releases of the lock are not announced.
    announce: Option<Announce>,
    asks_replicas: bool,
}

/// A row of the table, for one lock and client.
struct Question {
    permission: &'static str,
    name: &'static str,
    args: Vec<Arg>,
    /// The permission for the key that the command is about, if that is one of the lock's.
    key: Option<String>,
}

impl CheckContext<'_> {
    fn questions(&self) -> Vec<Question> {
        let needed = PERMISSIONS.iter().filter(|(when, ..)| when(self));
        let questions = needed.filter_map(|&(_, permission, command)| {
            let mut words = command.split(' ');
            Some(Question {
                permission,
                name: words.next()?,
                args: words.map(|word| self.word(word)).collect::<Option<_>>()?,
                key: command.rsplit(' ').find_map(|word| self.key_rule(word)),
            })
        });
        questions.collect()
    }

    fn word(&self, word: &'static str) -> Option<Arg> {
        Some(match word {
            "{absent}" => text(self.absent),
            "{read}" => Arg::Text(self.lock.first_read_of(self.absent)),
            "{sha}" => self.script.sha_word(),
            "{source}" => self.script.source_word(),
            "{raises}" => Arg::Fixed(RAISES),
            "{appends}" => Arg::Fixed(APPENDS),
            "{name}" => text(self.settings.client_name.as_ref()?),
            "{database}" => Arg::Number(self.settings.database()?.into()),
            word if word.starts_with('{') => text(self.key(word)?),
            word => word.parse().map_or(Arg::Fixed(word), Arg::Number),
        })
    }

    fn key(&self, word: &str) -> Option<&Arc<str>> {
        match word {
            "{lock}" => Some(self.lock.key()),
            "{token}" => self.lock.token(),
            "{queue}" => self.lock.queue().map(|[queue, _]| queue),
            "{places}" => self.lock.queue().map(|[_, places]| places),
            _ => None,
        }
    }

    fn key_rule(&self, word: &str) -> Option<String> {
        match word {
            // A key for each of the owner's holds.
            "{read}" => Some(self.lock.all_reads()),
            word => self.key(word).map(|key| format!("~{}", pattern_of(key))),
        }
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
        let context = CheckContext {
            lock,
            absent,
            script,
            settings: &settings,
            kind: &self.map.settings.kind,
            announce: Some(self.announce()).filter(|_| lock.kind().announces()),
            asks_replicas,
        };
        let mut asked = Asked {
            settings: settings.for_questions(),
            lock,
            channel: match FAIR(&context) {
                true => lock.channel_of(absent),
                false => Arc::clone(lock.channel()),
            },
            commands: Vec::new(),
            keys: Vec::new(),
            is_channel_missing: false,
        };
        asked.commands(context.questions()).await?;
        asked.channels(CLASSIC(&context), SHARDED(&context)).await?;
        Ok(asked.missing())
    }
}

/// INCR in a form without an effect on a holder: on the lock while it is held, which is of another type. The number of
/// a free lock is raised, which does no harm.
const RAISES: &str = "local held = redis.pcall('exists', KEYS[1])\n\
    if type(held) == 'table' then return held.ok end\n\
    if held == 1 then return redis.call('incr', KEYS[1]) end\n\
    return redis.call('incr', KEYS[2])";

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

fn text(text: &Arc<str>) -> Arg {
    Arg::Text(Arc::clone(text))
}

/// One server that is asked, and what it has refused so far.
struct Asked<'a> {
    settings: Settings,
    lock: &'a LockName,
    /// On which an owner hears of the lock.
    channel: Arc<str>,
    commands: Vec<&'static str>,
    keys: Vec<String>,
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
            self.note(question.permission, question.key.as_ref(), answer)?;
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

    async fn channels(&mut self, classic: bool, sharded: bool) -> Result<(), Error> {
        if !classic && !sharded {
            return Ok(());
        }
        let (connection, _task) = self.open().await?;
        let timeout = self.settings.command_timeout;
        let hello = connection.greet(timeout).await;
        let hello = hello.map_err(|problem| self.failed(problem))?;
        connection.receive(PushReceiver {
            has_lists: hello.is_none(),
            ..PushReceiver::default()
        });
        use Change::{Subscribe, Unsubscribe};
        use Delivery::{Classic, Sharded};
        let asked = [
            (classic, "+unsubscribe", Unsubscribe, Classic),
            (classic, "+subscribe", Subscribe, Classic),
            (sharded, "+ssubscribe", Subscribe, Sharded),
            (sharded, "+sunsubscribe", Unsubscribe, Sharded),
        ];
        for (is_asked, permission, change, delivery) in asked {
            if !is_asked {
                continue;
            }
            let until = Instant::now() + timeout;
            let answer = connection.change(change, delivery, &self.channel, until);
            let answer = tokio::time::timeout_at(until, answer).await;
            let answer = answer.unwrap_or_else(|_| Err(ConnectionError::silent()));
            self.note(permission, None, answer)?;
        }
        Ok(())
    }

    async fn open(&self) -> Result<(Connection, Task), Error> {
        let opened = Connection::open(&self.settings).await;
        opened.map_err(|problem| self.failed(problem))
    }

    /// `key` is the permission for the key that was named.
    fn note(
        &mut self,
        permission: &'static str,
        key: Option<&String>,
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
            // Not that of the lock.
            (Denied::Channel, "+publish" | "+spublish") => {}
            (Denied::Channel, _) => self.is_channel_missing = true,
            (Denied::Key, _) => {
                let key = key.filter(|key| !self.keys.contains(key));
                self.keys.extend(key.cloned());
            }
            (_, permission) => self.note_command(permission),
        }
        Ok(())
    }

    fn failed(&self, problem: ConnectionError) -> Error {
        problem.into_error(Operation::Inspecting, &self.settings.address)
    }

    fn missing(self) -> Vec<String> {
        let channel = self
            .is_channel_missing
            .then(|| missing_channel(self.lock.channel(), self.lock.kind().has_queue()));
        let commands = self.commands.iter().map(|&command| command.to_owned());
        commands.chain(self.keys).chain(channel).collect()
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
    use std::time::Duration;

    use super::*;
    use crate::script::{ALL, commands, of_kind};

    /// Only guarded writes with an id need it.
    const OF_IDS: (&str, &str) = ("guarded", "+set");

    #[test]
    fn every_command_of_every_script_is_asked_for() {
        let mut compared = BTreeSet::new();
        let settings = Settings::from_url("redis://localhost/1", None, Duration::ZERO, true);
        let settings = settings.expect("an address").with_client_name(Some("a"));
        for kind in LockKind::ALL {
            let lock = LockName::new(kind, "", "a").expect("a name");
            let scripts = of_kind(kind);
            let context = CheckContext {
                lock: &lock,
                absent: &"absent".into(),
                script: scripts[0],
                settings: &settings,
                kind: &Kind::Cluster(Vec::new()),
                announce: Some(Announce::Auto),
                asks_replicas: true,
            };
            let questions = context.questions();
            let needed = PERMISSIONS.iter().filter(|(when, ..)| when(&context));
            assert_eq!(questions.len(), needed.count(), "{kind}: a word is unknown");
            let asked = |command: &str| {
                let of = |question: &Question| question.permission.split('|').next();
                questions
                    .iter()
                    .any(|question| of(question) == Some(command))
            };
            // A lock with a queue or with readers is not handed over.
            let is_passed = !kind.has_queue() && !kind.has_faces();
            let is_used = |script: &&ServerScript| is_passed || script.name != "pass";
            for script in scripts.into_iter().filter(is_used) {
                for command in commands(script.source) {
                    let command = command.as_str();
                    let name = script.name;
                    let is_of_ids = (name, command) == OF_IDS;
                    assert!(is_of_ids || asked(command), "{kind}: {command} of {name}");
                }
                compared.insert(script.name);
            }
        }
        let all: BTreeSet<_> = ALL.iter().map(|script| script.name).collect();
        assert_eq!(compared, all, "each is of some kind");
    }
}
