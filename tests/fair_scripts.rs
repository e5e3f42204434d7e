//! The Lua files of fair locks, each alone on a real server: the table of states of the lock and its queue, every row also
//! with the script sent twice and with another party between the copies, and every right taken away in every state. And
//! random calls, once against twice.

use std::fmt::Write;

use test_support::contract::{
    Call, Contract, Listener, RANDOM_CALLS, RandomCalls, clock, eval, hundreds, items, lease,
    number, set_hash, text, units,
};
use test_support::{Control, Rolls, Server, test};

/// A script with the part about the queue before it, as it is sent.
macro_rules! fair {
    ($name:literal) => {
        concat!(
            include_str!("../lua/fair/queue.lua"),
            include_str!(concat!("../lua/fair/", $name, ".lua"))
        )
    };
}

const ACQUIRE: &str = fair!("acquire");
const RELEASE: &str = fair!("release");
const LEAVE: &str = fair!("leave");
const FORCE_UNLOCK: &str = fair!("force_unlock");
const INSPECT: &str = include_str!("../lua/fair/inspect.lua");
const RENEW: &str = test_support::RENEW;

/// The lease of the lock ends.
const EXPIRES: &str = "redis.call('del', KEYS[1]) return 1";

const CHANNEL: &str = "redisson_lock__channel:{k}";

fn keys(name: &str) -> [String; 3] {
    [
        name.to_owned(),
        format!("redisson_lock_queue:{{{name}}}"),
        format!("redisson_lock_timeout:{{{name}}}"),
    ]
}

fn run(control: &mut Control, call: Call<'_>) -> String {
    let named = if call.0 == RENEW { 1 } else { 3 };
    eval(control, call, &keys("k")[..named])
}

/// Lock, queue and timeouts, and the clock. The milliseconds that are left of the lock come first.
const LOOK: &str = "\
local time = redis.call('time')
return {redis.call('pttl', KEYS[1]), redis.call('hgetall', KEYS[1]), redis.call('lrange', KEYS[2], 0, -1),
  redis.call('zrange', KEYS[3], 0, -1, 'withscores'), time[1] .. string.format('%06d', time[2])}";

/// What stands under the keys of a lock.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    left: i64,
    fields: Vec<String>,
    queue: Vec<String>,
    /// Milliseconds until a place ends.
    places: Vec<(String, i64)>,
}

impl Seen {
    fn read(value: &redis::Value) -> Self {
        let texts = |value| items(value).iter().map(text).collect();
        let [left, fields, queue, scores, clock] = items(value) else {
            panic!("{value:?}")
        };
        let clock: i64 = text(clock).parse().expect("microseconds");
        let scores: Vec<String> = texts(scores);
        let ends = |score: &str| score.parse::<i64>().expect("whole") - clock / 1_000;
        let places = scores.chunks(2);
        Self {
            left: number(left),
            fields: texts(fields),
            queue: texts(queue),
            places: places
                .map(|pair| (pair[0].clone(), ends(&pair[1])))
                .collect(),
        }
    }

    /// "me:1 1 20 / a:1 30 b:1 ? + c:1 40": owner, count and the units left; the queue with the units left of each place,
    /// `?` if it has no score; and after a `+` a score without a place.
    fn shown(&self) -> String {
        let mut text = self.fields.join(" ");
        if self.left != -2 {
            write!(text, " {} ", lease(self.left)).expect("written");
        }
        text.push('/');
        for owner in &self.queue {
            let place = self.places.iter().find(|place| place.0 == *owner);
            let ends = place.map_or_else(|| "?".to_owned(), |place| units(place.1).to_string());
            write!(text, " {owner} {ends}").expect("written");
        }
        for (owner, ends) in &self.places {
            if !self.queue.contains(owner) {
                write!(text, " + {owner} {}", units(*ends)).expect("written");
            }
        }
        text
    }
}

fn seen(control: &mut Control) -> String {
    let mut command = redis::cmd("EVAL");
    let look = command.arg(LOOK).arg(3).arg(&keys("k"));
    let value = look.query(&mut control.connection).expect("answered");
    Seen::read(&value).shown()
}

/// Makes the state that [`Seen::shown`] shows.
fn set(control: &mut Control, state: &str) {
    let [lock, queue, timeouts] = &keys("k");
    let mut pipe = redis::pipe();
    pipe.cmd("DEL").arg(&[queue, timeouts]);
    let (held, waiting) = state.split_once('/').expect("lock / queue");
    set_hash(&mut pipe, lock, held);
    let now = clock(control);
    let mut words = waiting.split_whitespace();
    while let Some(word) = words.next() {
        let owner = match word {
            "+" => words.next().expect("an owner"),
            owner => {
                pipe.cmd("RPUSH").arg(queue).arg(owner);
                owner
            }
        };
        let ends = words.next().expect("units, or ?");
        if let Ok(ends) = ends.parse::<i64>() {
            let score = now + ends * 10_000;
            pipe.cmd("ZADD").arg(timeouts).arg(score).arg(owner);
        }
    }
    pipe.exec(&mut control.connection).expect("set");
}

/// Takes the lock in its turn, or queues up, with a lease of 5 units and a wait of 100.
const QUEUES: Call<'_> = Call(
    ACQUIRE,
    &["me:1", "1", "50000", "1000000", "1000000", CHANNEL],
);
/// The same without queueing.
const ATTEMPTS: Call<'_> = Call(ACQUIRE, &["me:1", "1", "50000", "1000000", "0", CHANNEL]);
const NESTED: Call<'_> = Call(
    ACQUIRE,
    &["me:1", "2", "300000", "1000000", "1000000", CHANNEL],
);
/// Ends all holds, and leaves the queue.
const ENDS: Call<'_> = Call(RELEASE, &["me:1", "0", "1", CHANNEL, "publish", "1000000"]);
/// The same, and stays in the queue.
const STAYS: Call<'_> = Call(RELEASE, &["me:1", "0", "1", CHANNEL, "publish", "0"]);
const BOTH_LEAVE: Call<'_> = Call(
    LEAVE,
    &[CHANNEL, "publish", "me:1", "1000000", "me:2", "1000000"],
);
const FORCED: Call<'_> = Call(FORCE_UNLOCK, &["me:1", "0", CHANNEL]);

#[test]
fn acquire_takes_a_free_lock_in_its_turn() {
    let table = "
        /                         | 1 | me:1 1 5 /
        // The turns of those after it come earlier, by no more than its place had left.
        / me:1 50                 | 1 | me:1 1 5 /
        / me:1 50 a:1 350 b:1 150 | 1 | me:1 1 5 / a:1 300 b:1 150
        // A client that counts with shorter waits keeps its place.
        / me:1 50 a:1 30          | 1 | me:1 1 5 / a:1 30
        / me:1 50 a:1 ?           | 1 | me:1 1 5 / a:1 ?
        / me:1 ? a:1 350          | 1 | me:1 1 5 / a:1 350
        // An own place that has ended is still the own turn: this owner is alive.
        / me:1 -5 a:1 350         | 1 | me:1 1 5 / a:1 350
        // Places that have ended are no turn.
        / a:1 -5 b:1 -3           | 1 | me:1 1 5 /
        / a:1 -5 me:1 50 b:1 350  | 1 | me:1 1 5 / b:1 300
        // What is no place is cleared away.
        / + me:1 50               | 1 | me:1 1 5 /
        // An earlier copy has taken it, or an outer hold.
        me:1 1 20 / a:1 150       | 1 | =
        me:1 3 2 / a:1 150        | 1 | me:1 1 5 / a:1 150
        me:1 1 -1 /               | 1 | me:1 1 5 /
        ";
    CONTRACT.rows(QUEUES, table);
    CONTRACT.rows(ATTEMPTS, table);
}

#[test]
fn acquire_of_a_lock_that_is_busy_or_anothers_turn_takes_one_place() {
    CONTRACT.rows(
        QUEUES,
        "
        you:1 1 20 /                              | 20 you:1 0  | you:1 1 20 / me:1 120
        you:1 1 -1 /                              | -1 you:1 0  | you:1 1 -1 / me:1 100
        // After the last one, and after the lease.
        you:1 1 20 / a:1 130                      | 20 you:1 1  | you:1 1 20 / a:1 130 me:1 230
        you:1 1 200 / a:1 130                     | 200 you:1 1 | you:1 1 200 / a:1 130 me:1 300
        // An own place is prolonged, never shortened, and those after it with it.
        you:1 1 20 / a:1 130 me:1 50 b:1 400      | 20 you:1 1  | you:1 1 20 / a:1 130 me:1 230 b:1 580
        you:1 1 20 / me:1 500                     | 20 you:1 0  | =
        // Its attempt shows that it is alive.
        you:1 1 20 / me:1 -5 a:1 200              | 20 you:1 0  | you:1 1 20 / me:1 100 a:1 305
        you:1 1 20 / a:1 -5 me:1 -4 b:1 -3        | 20 you:1 0  | you:1 1 20 / me:1 100 b:1 101
        you:1 1 20 / me:1 ?                       | 20 you:1 0  | you:1 1 20 / me:1 100
        // Places that have ended are removed from the front.
        you:1 1 20 / a:1 -5 b:1 -3 c:1 130 d:1 -1 | 20 you:1 2  | you:1 1 20 / c:1 130 d:1 -1 me:1 120
        you:1 1 20 / a:1 -5                       | 20 you:1 0  | you:1 1 20 / me:1 120
        // Scores and places that do not belong together are repaired.
        you:1 1 20 / + me:1 500                   | 20 you:1 0  | you:1 1 20 / me:1 120
        you:1 1 20 / a:1 ?                        | 20 you:1 1  | you:1 1 20 / a:1 100 me:1 200
        / a:1 30                                  | -5 30 a:1 1 | / a:1 30 me:1 130
        / a:1 -5 b:1 30                           | -5 30 b:1 1 | / b:1 30 me:1 130
        / a:1 30 me:1 130                         | -5 30 a:1 1 | =
        ",
    );
}

#[test]
fn acquire_that_does_not_queue_takes_no_place_and_keeps_another_calls() {
    CONTRACT.rows(
        ATTEMPTS,
        "
        you:1 1 20 /                | 20 you:1 -1   | =
        you:1 1 20 / a:1 -5 b:1 30  | 20 you:1 -1   | you:1 1 20 / b:1 30
        / a:1 30                    | -5 30 a:1 -1  | =
        / a:1 ? b:1 30              | -5 100 a:1 -1 | / a:1 100 b:1 30
        / a:1 30 me:1 50            | -5 30 a:1 1   | =
        you:1 1 20 / me:1 -5 a:1 30 | 20 you:1 0    | =
        you:1 1 20 / + me:1 50      | 20 you:1 -1   | you:1 1 20 /
        ",
    );
    CONTRACT.rows(
        NESTED,
        "
        /                   | 0 | =
        / me:1 50           | 0 | =
        you:1 1 20 / a:1 -5 | 0 | =
        me:1 1 20 / a:1 150 | 1 | me:1 2 30 / a:1 150
        me:1 2 40 /         | 1 | =
        ",
    );
}

#[test]
fn release_frees_the_lock_leaves_the_queue_and_removes_places_that_have_ended() {
    let leaves = ["me:1", "0", "10000", CHANNEL, "publish", "1000000"];
    CONTRACT.rows(
        Call(RELEASE, &leaves),
        "
        /                                                    | 0  | 0  | =
        me:1 1 20 /                                          | 1  | 0  | /
        me:1 3 20 / a:1 130                                  | 1  | 0  | / a:1 130
        me:1 1 20 / a:1 -5 b:1 130                           | 1  | 0  | / b:1 130
        me:1 1 20 / a:1 -5                                   | 1  | 0  | /
        me:1 1 20 / a:1 ?                                    | 1  | 0  | / a:1 ?
        // Those that end after it come earlier.
        you:1 1 20 / a:1 130 me:1 230 b:1 330 c:1 150 d:1 30 | -1 | -1 | you:1 1 20 / a:1 130 b:1 230 c:1 150 d:1 30
        / me:1 50 a:1 350                                    | 0  | 0  | / a:1 300
        // It is gone before anybody's turn is looked at.
        / me:1 -5 a:1 350                                    | 0  | 0  | / a:1 350
        / a:1 -5 me:1 50 b:1 350                             | 0  | 0  | / b:1 300
        / me:1 50 a:1 -5 b:1 350                             | 0  | 0  | / b:1 300
        you:1 1 20 / + me:1 50                               | -1 | -1 | you:1 1 20 /
        you:1 1 20 / me:1 ?                                  | -1 | -1 | you:1 1 20 /
        you:1 1 20 / a:1 -5                                  | -1 | -1 | =
        ",
    );
    let stays = ["me:1", "0", "10000", CHANNEL, "publish", "0"];
    CONTRACT.rows(
        Call(RELEASE, &stays),
        "
        me:1 1 20 / a:1 -5 b:1 130    | 1  | 0  | / b:1 130
        you:1 1 20 / a:1 130 me:1 230 | -1 | -1 | =
        / me:1 50 a:1 350             | 0  | 0  | =
        / a:1 -5 me:1 50              | 0  | 0  | / me:1 50
        ",
    );
    let nested = ["me:1", "1", "300000", CHANNEL, "publish", "1000000"];
    CONTRACT.rows(
        Call(RELEASE, &nested),
        "
        me:1 2 20 / a:1 -5  | 1  | me:1 1 30 / a:1 -5
        me:1 1 40 /         | 1  | =
        you:1 1 20 / a:1 50 | -1 | =
        / a:1 -5 b:1 50     | 0  | / b:1 50
        ",
    );
}

#[test]
fn many_owners_leave_in_one_call() {
    let three = [
        CHANNEL, "publish", "me:1", "1000000", "me:2", "1000000", "me:3", "500000",
    ];
    CONTRACT.rows(
        Call(LEAVE, &three),
        "
        /                                                                       | 0 0 0    | 0 0 0    | =
        me:2 2 20 / a:1 130                                                     | 0 1 0    | 0 0 0    | / a:1 130
        me:2 1 20 / a:1 -5 me:1 50                                              | 0 1 0    | 0 0 0    | /
        you:1 1 20 /                                                            | -1 -1 -1 | -1 -1 -1 | =
        // Each place comes earlier by the waits of those before it that leave.
        you:1 1 20 / a:1 130 me:1 230 b:1 330 me:2 430 me:3 480 c:1 580 d:1 180 | -1 -1 -1 | -1 -1 -1 | you:1 1 20 / a:1 130 b:1 230 c:1 330 d:1 180
        / me:1 100 a:1 -5 me:2 300 b:1 700 me:3 800 c:1 900                     | 0 0 0    | 0 0 0    | / b:1 500 c:1 650
        you:1 1 20 / a:1 150 me:2 ? + me:1 50                                   | -1 -1 -1 | -1 -1 -1 | you:1 1 20 / a:1 150
        ",
    );
}

#[test]
fn force_unlock_frees_the_named_owner_alone_until_its_limit() {
    CONTRACT.rows(
        Call(FORCE_UNLOCK, &["you:1", "0", CHANNEL]),
        "
        / a:1 -5                   | 0 | 0 | =
        me:1 1 20 / a:1 -5         | 0 | 0 | =
        you:1 2 20 / a:1 -5 b:1 50 | 1 | 0 | / b:1 50
        you:1 1 -1 /               | 1 | 0 | /
        ",
    );
    CONTRACT.rows(
        Call(FORCE_UNLOCK, &["you:1", "1", CHANNEL]),
        "
        you:1 2 20 / a:1 -5 | -1 | =
        ",
    );
}

#[test]
fn inspect_shows_the_holder_and_the_queue() {
    CONTRACT.rows(
        Call(INSPECT, &[]),
        "
        /                               | nil                                 | =
        me:1 2 20 /                     | 20 me:1 2 now []                    | =
        me:1 2 -1 / a:1 -5 b:1 50 c:1 ? | -1 me:1 2 now a:1 -5 b:1 50 c:1 nil | =
        / a:1 50                        | -2 nil 0 now a:1 50                 | =
        mode read a:1 1 20 /            | -3 a hash of another kind           | =
        ",
    );
}

/// Locks of other kinds, and keys of other types.
#[test]
fn what_is_no_fair_lock_is_reported_and_left_alone() {
    let server = Server::start();
    let control = &mut server.control();
    let release = ["me:1", "1", "10000", CHANNEL, "publish", "1000000"];
    let kind = "mode read a:1 1 20 / a:1 -5";
    set(control, kind);
    assert_eq!(run(control, QUEUES), "-3 a hash of another kind");
    assert_eq!(seen(control), kind);
    for count in ["many", "-1", "1.5", "99999999999999999999"] {
        let state = format!("me:1 {count} 20 / a:1 -5");
        set(control, &state);
        assert_eq!(run(control, NESTED), "-3 a non-numeric hold count");
        assert_eq!(run(control, Call(RELEASE, &release)), "-3");
        assert_eq!(seen(control), state);
        // Another field: an application's hash, which no lease ends.
        let state = format!("name {count} -1 / a:1 -5");
        set(control, &state);
        for call in [QUEUES, ATTEMPTS, NESTED] {
            assert_eq!(run(control, call), "-3 a non-numeric hold count");
        }
        assert_eq!(seen(control), state);
    }
    let calls = [
        QUEUES,
        ATTEMPTS,
        Call(
            RELEASE,
            &["me:1", "0", "10000", CHANNEL, "publish", "1000000"],
        ),
        Call(LEAVE, &[CHANNEL, "publish", "me:1", "1000000"]),
        Call(INSPECT, &[]),
    ];
    for wrong in keys("k") {
        set(control, "/");
        control.run(&["SET", &wrong, "text"]);
        for call in calls {
            let answer = run(control, call);
            // A release of a lock without a queue does not ask for the scores of others.
            let fine = call.0 == INSPECT && wrong.starts_with("redisson_lock_timeout");
            assert!(answer.contains("WRONGTYPE") || fine, "{wrong}: {answer}");
            assert_eq!(control.run(&["KEYS", "*"]), wrong, "{:?}", call.1);
        }
    }
}

#[test]
fn a_lease_that_the_server_refuses_leaves_nothing_behind() {
    let server = Server::start();
    let control = &mut server.control();
    for lease in ["9223372036854775807", "nonsense"] {
        for state in ["/", "/ me:1 50 a:1 350", "me:1 1 20 /", "/ a:1 -5 b:1 -4"] {
            set(control, state);
            let args = ["me:1", "1", lease, "1000000", "1000000", CHANNEL];
            let answer = run(control, Call(ACQUIRE, &args));
            assert!(answer.starts_with("error"), "{state}: {answer}");
            assert_eq!(seen(control), state);
        }
    }
}

/// The owners that were told since the last look.
fn told(listener: &mut Listener<'_>) -> String {
    let owners = listener.heard().into_iter().map(|(channel, message)| {
        assert_eq!(message, "0");
        let owner = channel.strip_prefix(CHANNEL);
        let owner = owner.and_then(|owner| owner.strip_prefix(':'));
        owner.expect("an owner's channel").to_owned()
    });
    owners.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_owner_whose_turn_it_is_is_told_and_no_other() {
    let server = Server::start();
    let control = &mut server.control();
    let mut listens = server.control();
    let mut listener = Listener::of(&mut listens);
    let nested = Call(RELEASE, &["me:1", "1", "1", CHANNEL, "publish", "1000000"]);
    let force = Call(FORCE_UNLOCK, &["you:1", "0", CHANNEL, "publish"]);
    let late = Call(FORCE_UNLOCK, &["you:1", "1", CHANNEL, "publish"]);
    // call, state, answer, who is told
    let table = [
        (ENDS, "me:1 1 20 / a:1 50 b:1 150", "2", "a:1"),
        (ENDS, "me:1 1 20 / a:1 -5 b:1 150", "2", "b:1"),
        (ENDS, "me:1 1 20 / a:1 ?", "2", "a:1"),
        (ENDS, "me:1 1 20 /", "1", ""),
        (ENDS, "you:1 1 20 / me:1 50 a:1 150", "-1", ""),
        // Its turn came when the lock became free, or when an earlier copy was executed: nobody else tells the next one.
        (ENDS, "/ me:1 50 a:1 150", "0", "a:1"),
        (ENDS, "/ a:1 50 me:1 150", "0", "a:1"),
        (ENDS, "/ me:1 50", "0", ""),
        (STAYS, "/ me:1 50 a:1 150", "0", "me:1"),
        (nested, "me:1 2 20 / a:1 50", "1", ""),
        (BOTH_LEAVE, "/ me:1 50 a:1 -5 me:2 50 b:1 50", "0 0", "b:1"),
        (BOTH_LEAVE, "you:1 1 20 / me:1 50 a:1 150", "-1 -1", ""),
        (BOTH_LEAVE, "me:2 1 20 / me:1 50 a:1 150", "0 1", "a:1"),
        (force, "you:1 1 20 / a:1 -5 b:1 150", "1", "b:1"),
        (force, "me:1 1 20 / a:1 50", "0", ""),
        (late, "you:1 1 20 / a:1 50", "-1", ""),
        // A release told the owner whose place has ended, or the lease ended.
        (QUEUES, "/ a:1 -5 b:1 30", "-5 30 b:1 1", "b:1"),
        (ATTEMPTS, "/ a:1 -5 b:1 30", "-5 30 b:1 -1", "b:1"),
        (QUEUES, "/ a:1 30 me:1 130", "-5 30 a:1 1", "a:1"),
        (ATTEMPTS, "/ a:1 30 b:1 130", "-5 30 a:1 -1", "a:1"),
        // It may have released the lock itself, and has told the next one.
        (QUEUES, "/ a:1 30 b:1 130", "-5 30 a:1 2", ""),
        (QUEUES, "/ me:1 50 a:1 150", "1", ""),
        (QUEUES, "you:1 1 20 / a:1 -5 b:1 30", "20 you:1 1", ""),
    ];
    for (call, state, answer, owner) in table {
        set(control, state);
        let what = format!("{state}: {:?}", call.1);
        assert_eq!(run(control, call), answer, "{what}");
        assert_eq!(told(&mut listener), owner, "{what}");
    }
}

/// Who publishes how: the calls of `publish` and `spublish`.
#[test]
fn a_message_goes_the_way_that_was_asked_for() {
    let server = Server::start();
    let control = &mut server.control();
    if control.run(&["COMMAND", "INFO", "spublish"]) == "(nil)" {
        // A server without sharded channels.
        return;
    }
    let mut listens = server.control();
    for (way, heard, published) in [
        ("publish", false, [1, 0]),
        ("spublish", false, [0, 1]),
        ("both", false, [1, 1]),
        ("auto", false, [0, 1]),
        ("auto", true, [1, 1]),
    ] {
        if heard {
            listens.run(&["SUBSCRIBE", &format!("{CHANNEL}:a:1")]);
        }
        set(control, "me:1 1 20 / a:1 50");
        let calls = |control: &mut Control| ["publish", "spublish"].map(|it| control.calls(it));
        let before = calls(control);
        let args = ["me:1", "0", "1", CHANNEL, way, "1000000", "1"];
        let answer = if heard { "2" } else { "1" };
        assert_eq!(run(control, Call(RELEASE, &args)), answer, "{way}");
        let after = calls(control);
        let made = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(made, published, "{way}");
    }
}

/// A copy that comes after another party has been there finds what it has left: nobody has two places, no owner both holds
/// and waits, and no hold of another owner ends.
#[test]
fn another_party_between_two_copies_keeps_its_place_and_its_hold() {
    let nested = ["me:1", "1", "10000", CHANNEL, "publish", "1000000"];
    let attempts = ["a:1", "1", "90000", "1000000", "1000000", CHANNEL];
    let frees = ["you:1", "0", "1", CHANNEL, "publish", "1000000"];
    let leaves = ["a:1", "0", "1", CHANNEL, "publish", "1000000"];
    let calls = [
        ("QUEUES", QUEUES),
        ("ATTEMPTS", ATTEMPTS),
        ("NESTED", NESTED),
        ("ENDS", ENDS),
        ("STAYS", STAYS),
        ("LEAVE", BOTH_LEAVE),
        ("FORCED", FORCED),
        ("nested", Call(RELEASE, &nested)),
        ("a:1 attempts", Call(ACQUIRE, &attempts)),
        ("you:1 frees", Call(RELEASE, &frees)),
        ("a:1 leaves", Call(RELEASE, &leaves)),
        ("hold expires", Call(EXPIRES, &[])),
    ];
    CONTRACT.rows_between(
        &calls,
        "
        QUEUES   | /                                     | 1           | a:1 attempts | 1            | me:1 1 5 / a:1 105
        QUEUES   | /                                     | 1           | hold expires | 1            | me:1 1 5 /
        QUEUES   | / me:1 50 a:1 350                     | 1           | hold expires | -5 300 a:1 1 | / a:1 300 me:1 400
        QUEUES   | you:1 1 20 /                          | 20 you:1 0  | a:1 attempts | 20 you:1 0   | you:1 1 20 / me:1 120 a:1 220
        QUEUES   | you:1 1 20 /                          | 20 you:1 0  | you:1 frees  | 1            | me:1 1 5 /
        QUEUES   | you:1 1 20 / a:1 50                   | 20 you:1 1  | you:1 frees  | -5 50 a:1 1  | / a:1 50 me:1 150
        QUEUES   | you:1 1 20 / a:1 50                   | 20 you:1 1  | a:1 leaves   | 20 you:1 0   | you:1 1 20 / me:1 100
        QUEUES   | / a:1 50                              | -5 50 a:1 1 | a:1 attempts | 9 a:1 0      | a:1 1 9 / me:1 100
        QUEUES   | / a:1 50                              | -5 50 a:1 1 | a:1 leaves   | 1            | me:1 1 5 /
        ATTEMPTS | you:1 1 20 /                          | 20 you:1 -1 | you:1 frees  | 1            | me:1 1 5 /
        ATTEMPTS | /                                     | 1           | hold expires | 1            | me:1 1 5 /
        NESTED   | me:1 1 20 /                           | 1           | hold expires | 0            | /
        ENDS     | me:1 1 20 / a:1 50                    | 1           | a:1 attempts | -1           | a:1 1 9 /
        ENDS     | me:1 1 20 /                           | 1           | a:1 attempts | -1           | a:1 1 9 /
        ENDS     | me:1 1 20 / a:1 50                    | 1           | a:1 leaves   | 0            | /
        ENDS     | you:1 1 20 / me:1 50 a:1 350          | -1          | you:1 frees  | 0            | / a:1 300
        ENDS     | you:1 1 20 / me:1 50 a:1 350          | -1          | a:1 attempts | -1           | you:1 1 20 / a:1 300
        // A late copy removes the place that a younger call of its owner has taken: that call takes one again, behind others.
        ENDS     | me:1 1 20 / a:1 50                    | 1           | QUEUES       | 0            | / a:1 50
        STAYS    | me:1 1 20 / a:1 50                    | 1           | QUEUES       | 0            | / a:1 50 me:1 150
        // And it frees what a younger call has: the core begins none before the release is answered.
        STAYS    | me:1 1 20 /                           | 1           | QUEUES       | 1            | /
        nested   | me:1 2 20 /                           | 1           | hold expires | 0            | /
        nested   | me:1 2 20 / a:1 50                    | 1           | a:1 attempts | 1            | me:1 1 20 / a:1 100
        LEAVE    | you:1 1 20 / me:1 50 a:1 350 me:2 400 | -1 -1       | a:1 attempts | -1 -1        | you:1 1 20 / a:1 300
        LEAVE    | you:1 1 20 / me:1 50 a:1 350 me:2 400 | -1 -1       | you:1 frees  | 0 0          | / a:1 300
        LEAVE    | me:1 1 20 / a:1 50 me:2 400           | 1 0         | a:1 attempts | -1 -1        | a:1 1 9 /
        FORCED   | me:1 1 20 / a:1 50                    | 1           | a:1 attempts | 0            | a:1 1 9 /
        FORCED   | you:1 1 20 / a:1 50                   | 0           | you:1 frees  | 0            | / a:1 50
        ",
    );
}

/// Without the fence a copy may be executed after its owner has gone. Its owner learns of what it leaves from the next answer
/// that names it, and releases that; otherwise a place ends by itself.
#[test]
fn a_copy_that_comes_after_its_owner_has_gone_leaves_what_a_release_removes() {
    let server = Server::start();
    let control = &mut server.control();
    let another = Call(
        ACQUIRE,
        &["me:2", "1", "50000", "1000000", "1000000", CHANNEL],
    );
    for (state, found, left) in [
        // It has taken the lock, or a place.
        ("/", "5 me:1 0", "me:1 1 5 / me:2 105"),
        ("/ a:1 50", "-5 50 a:1 2", "/ a:1 50 me:1 150 me:2 250"),
    ] {
        set(control, state);
        // The first copy, its release, and the late copy.
        for call in [QUEUES, ENDS, QUEUES] {
            run(control, call);
        }
        assert_eq!(run(control, another), found, "{state}");
        assert_eq!(seen(control), left, "{state}");
        if state != "/" {
            // Its turn comes: the answer names it.
            let gone = ["a:1", "0", "1", CHANNEL, "publish", "1000000"];
            run(control, Call(RELEASE, &gone));
            assert_eq!(run(control, another), "-5 100 me:1 1", "{state}");
        }
        run(control, ENDS);
        assert_eq!(run(control, another), "1", "{state}");
        assert_eq!(seen(control), "me:2 1 5 /", "{state}");
    }
}

/// Lua passes only a few thousand values to a command in one call.
#[test]
fn the_places_of_a_queue_of_any_length_end_earlier() {
    const OWNERS: usize = 1_500;
    const FILL: &str = "\
local time = redis.call('time')
for owner = 0, ARGV[1] - 1 do
  redis.call('rpush', KEYS[2], owner)
  redis.call('zadd', KEYS[3], string.format('%d', time[1] * 1000 + (owner + 1) * 1000000), owner)
end
return 1";
    let server = Server::start();
    let control = &mut server.control();
    assert_eq!(run(control, Call(FILL, &[&OWNERS.to_string()])), "1");
    // Owners in their order, each with the hundreds of units until its place ends.
    let places = |control: &mut Control| {
        let seen = seen(control);
        let (_, queue) = seen.split_once("/ ").expect("lock / queue");
        let words = queue.split(' ').map(|word| word.parse().expect("a number"));
        let words: Vec<usize> = words.collect();
        let places = words
            .chunks(2)
            .map(|place| (place[0], place[1].div_ceil(100)));
        places.collect::<Vec<_>>()
    };
    let take = ["0", "1", "50000", "1000000", "1000000", CHANNEL];
    assert_eq!(run(control, Call(ACQUIRE, &take)), "1");
    let after: Vec<_> = (1..OWNERS).map(|nth| (nth, nth)).collect();
    assert!(places(control) == after);
    // Every second one of the first four hundred.
    let leaving: Vec<String> = (1..=200).map(|nth| (2 * nth).to_string()).collect();
    let owners = leaving.iter().flat_map(|owner| [owner.as_str(), "1000000"]);
    let args: Vec<&str> = [CHANNEL, "publish"].into_iter().chain(owners).collect();
    assert_eq!(run(control, Call(LEAVE, &args)), ["-1"; 200].join(" "));
    let stay = (1..OWNERS).filter(|nth| *nth > 400 || nth % 2 == 1);
    let earlier = |nth: usize| (nth.min(401) - 1) / 2;
    let after: Vec<_> = stay.map(|nth| (nth, nth - earlier(nth))).collect();
    assert!(places(control) == after);
}

const STATES: [&str; 14] = [
    "/",
    "/ me:1 50 a:1 350",
    "/ a:1 -5 me:1 50 b:1 350",
    "/ a:1 -5 b:1 350",
    "/ a:1 50",
    "/ a:1 ?",
    "me:1 1 20 /",
    "me:1 2 20 / a:1 -5 b:1 350",
    "you:1 1 20 /",
    "you:1 1 20 / a:1 -5 b:1 130",
    "you:1 1 20 / a:1 130 me:1 50 b:1 450",
    "you:1 1 20 / a:1 -5 me:1 50 b:1 450",
    "you:1 1 20 / + me:1 50",
    "you:1 1 20 / a:1 ? me:1 ?",
];

const CALLS: [Call<'_>; 11] = [
    QUEUES,
    ATTEMPTS,
    NESTED,
    ENDS,
    STAYS,
    Call(
        RELEASE,
        &["me:1", "1", "300000", CHANNEL, "publish", "1000000"],
    ),
    Call(
        LEAVE,
        &[CHANNEL, "publish", "me:1", "1000000", "b:1", "1000000"],
    ),
    FORCED,
    Call(FORCE_UNLOCK, &["you:1", "99999999999999", CHANNEL]),
    Call(INSPECT, &[]),
    Call(RENEW, &["me:1", "300000"]),
];

/// Without the lease: a call that is refused after it has raised the lease of its own hold does no harm.
fn without_own_lease(state: &str) -> String {
    let (held, queue) = state.split_once('/').expect("lock / queue");
    match held.trim_end().rsplit_once(' ') {
        Some((holder, _)) if holder.starts_with("me:1") => format!("{holder} /{queue}"),
        _ => state.to_owned(),
    }
}

const CONTRACT: Contract<'_> = Contract {
    calls: &CALLS,
    states: &STATES,
    set,
    run,
    seen,
    without_own_lease,
};

#[test]
fn whichever_right_is_missing_the_lock_and_its_queue_are_unchanged_or_complete() {
    CONTRACT.holds_without_a_right(
        "hget hincrby hlen hkeys hexists exists pttl pexpire publish del time \
         lindex lpos lrange lrem persist rpush zscore zrange zadd zrem resetchannels",
        5,
    );
}

#[test]
fn the_scripts_work_on_a_server_that_is_out_of_memory() {
    CONTRACT.holds_without_memory();
}

/// A random call, or a piece of Lua for what happens without one.
fn roll(rolls: &mut Rolls) -> (&'static str, Vec<&'static str>) {
    const OWNERS: [&str; 3] = ["me:1", "me:2", "you:1"];
    // Far apart from each other: the moments between two calls do not matter.
    const TIMES: [&str; 4] = ["100000", "200000", "300000", "400000"];
    let owner = rolls.of(&OWNERS);
    let (lease, wait) = (rolls.of(&TIMES), rolls.of(&TIMES));
    let given = rolls.of(&["0", wait]);
    match rolls.below(16) {
        0..=5 => {
            let target = rolls.of(&["1", "1", "1", "2", "3"]);
            (ACQUIRE, vec![owner, target, lease, wait, given, "c"])
        }
        6..=9 => {
            let target = rolls.of(&["0", "0", "1", "2"]);
            (RELEASE, vec![owner, target, lease, "c", "publish", given])
        }
        10 => {
            let other = if owner == "me:1" { "me:2" } else { "me:1" };
            (LEAVE, vec!["c", "publish", owner, wait, other, wait])
        }
        11 => (RENEW, vec![owner, lease]),
        12 => (FORCE_UNLOCK, vec![owner, "0", "c"]),
        // The lease ends.
        13 => (EXPIRES, Vec::new()),
        // A place ends.
        14 => (
            "if redis.call('zscore', KEYS[3], ARGV[1]) then redis.call('zadd', KEYS[3], 1, ARGV[1]) end return 1",
            vec![owner],
        ),
        // Another client has lost the score, as Redisson did.
        _ => ("redis.call('persist', KEYS[2]) return 1", Vec::new()),
    }
}

/// Milliseconds: the server's clock and an expiry are read in different ones.
const SLACK: i64 = 1_000;

impl Seen {
    /// With times in hundreds of seconds; a place that has ended has 0 left.
    fn rounded(&self) -> String {
        let places = self
            .places
            .iter()
            .map(|(owner, ends)| (owner, hundreds(*ends, SLACK)));
        let mut places: Vec<_> = places.collect();
        places.sort();
        format!(
            "{:?} {} {:?} {places:?}",
            self.fields,
            hundreds(self.left, SLACK),
            self.queue
        )
    }

    fn check(&self, what: &str) {
        let mut queue = self.queue.clone();
        queue.sort();
        let mut places: Vec<_> = self.places.iter().map(|place| place.0.clone()).collect();
        places.sort();
        assert_eq!(queue, places, "{what}: list and scores differ");
        queue.dedup();
        assert_eq!(queue.len(), places.len(), "{what}: two places");
        assert!(self.fields.len() <= 2, "{what}: two holders");
        if let Some(holder) = self.fields.first() {
            assert!(self.left > 0, "{what}: no lease");
            assert!(!queue.contains(holder), "{what}: the holder waits");
        }
    }
}

/// One world in which each call is sent once, and one in which it is sent twice: what the first copies answer and what
/// they leave is the same.
#[test]
fn of_twenty_thousand_random_calls_a_second_copy_changes_nothing() {
    let server = Server::start();
    let (mut held, mut long) = (0, 0);
    let calls = RandomCalls {
        seed: 0x9E37_79B9_7F4A_7C15,
        roll: &roll,
        keys: &|name, call| keys(name)[..if call.0 == RENEW { 1 } else { 3 }].to_vec(),
        look: LOOK,
        slack: SLACK,
    };
    calls.send(&mut server.control(), |sent| {
        let what = &sent.what;
        let [once, twice] = [sent.once, sent.twice].map(Seen::read);
        assert_eq!(once.rounded(), twice.rounded(), "{what}");
        once.check(what);
        twice.check(what);
        held += usize::from(!once.fields.is_empty());
        long += usize::from(once.queue.len() > 1);
    });
    assert!(
        held > RANDOM_CALLS / 4 && long > RANDOM_CALLS / 20,
        "held {held}, queues {long}"
    );
}
