//! Read-write locks: many readers, or one writer, which may also read.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::poll;
use redisson_lock::{
    Error, HoldState, Lock, LockClient, LockClientBuilder, LockGuard, LockKind, LossReason,
    MultiLock, Owner, Script,
};
use test_support::{
    Cluster, Control, Fate, Monitor, Proxy, TestServer, assert_matches, eventually, kinds,
    lock_and_unlock, ms, replicas_of, stalls, tokio, within,
};
use tokio::task::JoinHandle;

const NAME: &str = "report";
const CHANNEL: &str = "redisson_rwlock:{report}";

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(30);

/// Two clients at one server.
struct Two {
    server: TestServer,
    clients: [LockClient; 2],
    control: Control,
}

impl Two {
    async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(set: impl Fn(LockClientBuilder) -> LockClientBuilder) -> Self {
        let server = TestServer::new();
        let clients = [
            server.client_with(&set).await,
            server.client_with(&set).await,
        ];
        let control = server.control();
        Self {
            server,
            clients,
            control,
        }
    }

    fn read(&self, client: usize) -> Lock {
        self.clients[client].rw_lock(NAME).read()
    }

    fn write(&self, client: usize) -> Lock {
        self.clients[client].rw_lock(NAME).write()
    }

    /// A read hold of an owner that its client does not know.
    fn leaves_a_read_hold(&mut self, owner: &Owner) {
        let field = owner.to_string();
        let key = format!("{{report}}:{field}:rwlock_timeout:1");
        self.control
            .run(&["HSET", NAME, "mode", "read", &field, "1"]);
        self.control.run(&["PEXPIRE", NAME, "30000"]);
        self.control.run(&["SET", &key, "1", "PX", "30000"]);
    }

    /// Both parts for a new owner.
    fn owner(&self, client: usize) -> (Lock, Lock, Owner) {
        let owner = self.clients[client].owner();
        let (read, write) = (self.read(client), self.write(client));
        (read.owned_by(&owner), write.owned_by(&owner), owner)
    }

    /// A lock that a new owner of this client does not get now.
    async fn is_busy(&self, client: usize, lock: &Lock) {
        let other = lock.owned_by(&self.clients[client].owner());
        assert!(other.try_lock().await.expect("asked").is_none());
    }

    /// What the lock's hash has, sorted.
    fn hash(&mut self) -> Vec<(String, String)> {
        let words = self.control.run(&["HGETALL", NAME]);
        let words: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
        let fields = words.chunks(2);
        let mut fields: Vec<_> = fields
            .map(|pair| (pair[0].to_owned(), pair[1].to_owned()))
            .collect();
        fields.sort();
        fields
    }

    /// The same as a text: "mode read; 1 2" with the threads of the owners.
    fn shown(&mut self) -> String {
        let hash = self.hash();
        let fields = hash.iter().map(|(field, count)| {
            let thread = field.split_once(':').map_or(&**field, |(_, thread)| thread);
            format!("{thread} {count}")
        });
        fields.collect::<Vec<_>>().join("; ")
    }

    /// The keys of read holds, each of which ends.
    fn read_keys(&mut self) -> Vec<String> {
        let keys = self.control.run(&["KEYS", "{report}:*:rwlock_timeout:*"]);
        let mut keys: Vec<_> = keys.split(' ').filter(|key| !key.is_empty()).collect();
        keys.sort_unstable();
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    /// Calls of this client wait, whether or not they ask the server.
    async fn waiting(&self, client: usize, calls: usize) {
        let stats = || self.clients[client].stats();
        eventually("they wait", ms(5_000), || stats().waiting == calls).await;
    }

    /// The callers of this many clients wait for the holder at the server: those for one of their own client do not.
    async fn is_listened_to(&mut self, connections: usize) {
        let control = &mut self.control;
        let wanted = format!("{CHANNEL} {connections}");
        let listens = || control.run(&["PUBSUB", "NUMSUB", CHANNEL]) == wanted;
        eventually("they listen", ms(5_000), listens).await;
    }

    async fn finish(mut self) {
        let endless = kinds::endless(&mut self.control);
        assert!(endless.is_empty(), "without an end: {endless:?}");
        self.server.finish(self.clients).await;
    }
}

/// A call of a new owner that waits.
fn waits(client: &LockClient, lock: &Lock) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = lock.owned_by(&client.owner());
    tokio::spawn(async move { lock.lock().await })
}

/// What a call that waited has got, within 250 ms.
async fn got_soon(waiting: JoinHandle<Result<LockGuard, Error>>) -> LockGuard {
    let guard = within(ms(250), waiting).await.expect("in time");
    guard.expect("no panic").expect("free")
}

#[tokio::test]
async fn readers_of_two_clients_are_beside_each_other_and_no_writer_is() {
    let mut two = Two::new().await;
    let mut guards = Vec::new();
    for nth in 0..20 {
        let client = nth % 2;
        let lock = two.read(client).owned_by(&two.clients[client].owner());
        let guard = match nth / 2 % 3 {
            0 => lock.lock().await.expect("free"),
            1 => lock.try_lock().await.expect("asked").expect("free"),
            _ => lock.lease(LONG).lock().await.expect("free"),
        };
        assert_eq!(guard.state(), HoldState::Held);
        guards.push(guard);
    }
    assert_eq!(two.hash().len(), 21);
    assert_eq!(two.read_keys().len(), 20);
    for client in 0..2 {
        two.is_busy(client, &two.write(client)).await;
        let write = two.write(client).owned_by(&two.clients[client].owner());
        let late = write.try_lock_for(ms(300)).await.expect("asked");
        assert!(late.is_none());
    }
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    let guard = two.write(0).lock().await.expect("free");
    for client in 0..2 {
        two.is_busy(client, &two.write(client)).await;
        two.is_busy(client, &two.read(client)).await;
    }
    guard.unlock().await.expect("held");
    two.finish().await;
}

/// Sections of readers and writers of two clients: no reader is beside a writer, and no two writers are. The writers come
/// in although the readers never pause on purpose.
async fn sections(readers: usize, writers: usize, in_all: usize) {
    let two = Two::new().await;
    // Readers count up, a writer takes all of it.
    let (inside, done) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for nth in 0..readers + writers {
        let (client, writes) = (nth % 2, nth < writers);
        let lock = match writes {
            true => two.write(client),
            false => two.read(client),
        };
        let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
        callers.spawn(async move {
            let mut own = 0;
            while done.fetch_add(1, Ordering::SeqCst) < in_all {
                let guard = lock.lock().await.expect("free");
                let part = if writes { -1_000 } else { 1 };
                let before = inside.fetch_add(part, Ordering::SeqCst);
                assert!(if writes { before == 0 } else { before >= 0 }, "{before}");
                tokio::task::yield_now().await;
                inside.fetch_sub(part, Ordering::SeqCst);
                guard.unlock().await.expect("held");
                own += 1;
            }
            (writes, own)
        });
    }
    for (writes, own) in callers.join_all().await {
        assert!(own > 0, "a task that writes ({writes}) had no section");
    }
    two.finish().await;
}

#[tokio::test]
async fn sections_of_many_readers_and_a_writer_exclude_each_other() {
    sections(50, 1, 5_000).await;
}

#[tokio::test]
async fn sections_of_readers_and_writers_exclude_each_other() {
    sections(20, 4, 1_000).await;
}

/// What one client releases the other has soon: a writer's lock a reader, and a reader's a writer.
#[tokio::test]
async fn three_thousand_hand_overs_between_clients_take_less_than_a_second_each() {
    let two = Two::new().await;
    let mut held = two.write(0).lease(LONG).lock().await.expect("free");
    let (mut longest, start) = (Duration::ZERO, Instant::now());
    for nth in 0..3_000 {
        let next = match nth % 4 {
            0 => two.read(1),
            1 => two.write(0),
            2 => two.write(1),
            _ => two.write(0),
        };
        let waiting = tokio::spawn(async move {
            let guard = next.lease(LONG).lock().await;
            (guard.expect("free"), Instant::now())
        });
        let client = (nth + 1) % 2;
        let begun = Instant::now();
        let waits = || {
            let stats = two.clients[client].stats();
            (stats.waiting, stats.subscriptions) == (1, 1)
        };
        while !waits() {
            assert!(begun.elapsed() < ms(5_000) + stalls(begun), "it waits");
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        let released = Instant::now();
        held.unlock().await.expect("held");
        let (guard, at) = waiting.await.expect("no panic");
        longest = longest.max(at.saturating_duration_since(released));
        held = guard;
    }
    held.unlock().await.expect("held");
    assert!(longest < ms(1_000) + stalls(start), "{longest:?}");
    two.finish().await;
}

#[tokio::test]
async fn a_writer_wakes_readers_and_the_last_reader_a_writer() {
    let mut two = Two::new().await;
    let writes = two.write(0).lease(LONG).lock().await.expect("free");
    let readers: Vec<_> = (0..6)
        .map(|nth| waits(&two.clients[nth % 2], &two.read(nth % 2).lease(LONG)))
        .collect();
    two.waiting(0, 3).await;
    two.waiting(1, 3).await;
    two.is_listened_to(1).await;
    writes.unlock().await.expect("held");
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(got_soon(reader).await);
    }
    for client in [0, 1] {
        let writer = waits(&two.clients[client], &two.write(client).lease(LONG));
        two.waiting(client, 1).await;
        let last = guards.pop().expect("one");
        for guard in guards.drain(..) {
            guard.unlock().await.expect("held");
        }
        assert!(!writer.is_finished());
        last.unlock().await.expect("held");
        let writes = got_soon(writer).await;
        let reader = waits(&two.clients[1 - client], &two.read(1 - client).lease(LONG));
        two.is_listened_to(1).await;
        writes.unlock().await.expect("held");
        guards.push(got_soon(reader).await);
    }
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    two.finish().await;
}

#[tokio::test]
async fn both_parts_nest_and_are_counted_apart() {
    let mut two = Two::new().await;
    let (read, write, owner) = two.owner(0);
    let thread = owner.thread_id();
    let first = write.lock().await.expect("free");
    let second = write.try_lock().await.expect("asked").expect("nested");
    let inner = read.lock().await.expect("inside of the write hold");
    let inmost = read.try_lock().await.expect("asked").expect("nested");
    assert_eq!(
        two.shown(),
        format!("{thread} 2; {thread}:write 2; mode write")
    );
    assert_eq!(two.read_keys().len(), 2);
    for lock in [&read, &write] {
        assert_eq!(lock.hold_count().await.expect("asked"), 2);
        assert!(lock.is_held().await.expect("asked"));
    }
    for (part, field) in [
        (two.read(1), format!("{owner}")),
        (two.write(1), format!("{owner}:write")),
    ] {
        let seen = part.inspect().await.expect("asked").expect("held");
        assert_eq!((seen.owner, seen.hold_count), (field, 2));
        assert!(part.is_locked().await.expect("asked"));
    }
    inmost.unlock().await.expect("held");
    second.unlock().await.expect("held");
    assert_eq!(
        two.shown(),
        format!("{thread} 1; {thread}:write 1; mode write")
    );
    assert_eq!(two.read_keys().len(), 1);
    inner.unlock().await.expect("held");
    two.is_busy(1, &two.read(1)).await;
    first.unlock().await.expect("held");
    assert_eq!(two.shown(), "");
    // Readers nest by themselves, beside others.
    let other = two.read(1).lock().await.expect("free");
    let outer = read.lock().await.expect("free");
    let inner = read.lock().await.expect("nested");
    assert_eq!(read.hold_count().await.expect("asked"), 2);
    assert_eq!(write.hold_count().await.expect("asked"), 0);
    outer.unlock().await.expect("held");
    inner.unlock().await.expect("held");
    other.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn a_writer_that_releases_inside_of_a_read_lets_other_readers_in() {
    let mut two = Two::new().await;
    let (read, write, owner) = two.owner(0);
    let writes = write.lease(LONG).lock().await.expect("free");
    let reads = read.lease(LONG).lock().await.expect("inside");
    let reader = waits(&two.clients[1], &two.read(1));
    let writer = waits(&two.clients[1], &two.write(1));
    two.is_listened_to(1).await;
    writes.unlock().await.expect("held");
    let beside = got_soon(reader).await;
    assert!(!writer.is_finished());
    assert_eq!(reads.state(), HoldState::Held);
    let fields: Vec<_> = two.hash().into_iter().map(|(field, _)| field).collect();
    let mut wanted = [beside.owner(), &owner].map(Owner::to_string).to_vec();
    wanted.push("mode".to_owned());
    wanted.sort();
    assert_eq!(fields, wanted);
    assert_eq!(two.control.run(&["HGET", NAME, "mode"]), "read");
    beside.unlock().await.expect("held");
    assert!(!writer.is_finished());
    reads.unlock().await.expect("held");
    got_soon(writer).await.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn an_owner_that_reads_is_refused_to_write_before_anything_is_sent() {
    let mut two = Two::new().await;
    let (read, write, _) = two.owner(0);
    let reads = read.lock().await.expect("free");
    let monitor = Monitor::start(two.server.port);
    for _ in 0..2 {
        let refused = [
            write.lock().await.map(Some),
            write.try_lock().await,
            write.try_lock_for(ms(50)).await,
        ];
        for refused in refused {
            let Err(Error::WouldDeadlock { lock }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(lock, NAME);
        }
    }
    let sent = monitor.take(&mut two.control);
    let sent: Vec<_> = sent.iter().filter(|line| line.contains("report")).collect();
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(reads.state(), HoldState::Held);
    reads.unlock().await.expect("held");
    lock_and_unlock(&write).await;
    two.finish().await;
}

/// A single attempt that has to remove such a read hold first, and then finds others of its client before it, was
/// answered: it is no outage.
#[tokio::test]
async fn a_single_attempt_that_others_of_its_client_overtake_after_an_answer_finds_the_lock_busy() {
    let mut two = Two::new().await;
    let ((_, write, owner), (_, other, _)) = (two.owner(0), two.owner(0));
    two.leaves_a_read_hold(&owner);
    let (mut attempt, mut queued) = (pin!(write.try_lock()), pin!(other.lock()));
    assert!(poll!(&mut attempt).is_pending() && poll!(&mut queued).is_pending());
    let attempted = attempt.await;
    assert_matches!(attempted, Ok(None));
    let guard = queued.await.expect("after the read hold");
    guard.unlock().await.expect("held");
    two.finish().await;
}

/// A read hold of the owner that only the server has is released before the owner writes. If it cannot be, because
/// another process has the same owner, the call fails.
#[tokio::test]
async fn a_read_hold_that_only_the_server_has_does_not_keep_its_owner_from_writing() {
    let mut two = Two::new().await;
    let (_, write, owner) = two.owner(0);
    two.leaves_a_read_hold(&owner);
    let guard = write.lock().await.expect("after its own read hold");
    assert_eq!(two.read_keys().len(), 0);
    guard.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn the_watchdog_keeps_the_lock_and_the_keys_of_its_readers() {
    let watchdog = ms(1_500);
    let mut two = Two::with(|builder| builder.watchdog_timeout(watchdog)).await;
    let (read, write, _) = two.owner(0);
    let writes = write.lock().await.expect("free");
    let inside = read.lock().await.expect("inside");
    let others = [
        two.clients[1].lock_of(LockKind::Read, "other"),
        two.clients[0].lock_of(LockKind::Read, "other"),
    ];
    // A fixed lease is raised at each look.
    let fixed = others[0].lease(LONG).lock().await.expect("free");
    let renewed = others[1].lock().await.expect("beside it");
    let (start, mut looks) = (Instant::now(), 0);
    while start.elapsed() < watchdog * 3 + ms(200) {
        for key in ["report", "other"] {
            let left = two.control.pttl(key);
            assert!(left > 0, "{key} has {left}");
        }
        let keys = two.control.run(&["KEYS", "*rwlock_timeout*"]);
        let keys: Vec<_> = keys.split(' ').collect();
        assert_eq!(keys.len(), 3, "{keys:?}");
        for key in keys {
            assert!(two.control.pttl(key) > 0, "{key}");
        }
        looks += 1;
        tokio::time::sleep(ms(20)).await;
    }
    assert!(looks > 20, "{looks}");
    for guard in [&writes, &inside, &fixed, &renewed] {
        assert_eq!(guard.state(), HoldState::Held);
    }
    // What a reader in Java does to the lock and to the keys of others.
    let keys = two.control.run(&["KEYS", "{other}:*"]);
    for key in keys.split(' ').chain(["other"]) {
        two.control.run(&["PEXPIRE", key, "1500"]);
    }
    let control = &mut two.control;
    let raised = || control.pttl("other") > 20_000;
    eventually("the fixed lease is raised again", watchdog, raised).await;
    for guard in [inside, writes, fixed, renewed] {
        guard.unlock().await.expect("held");
    }
    two.finish().await;
}

/// A task that unlocks and locks in a row attempts before the task of a call that waits runs.
#[tokio::test]
async fn a_caller_in_a_row_keeps_neither_part_from_the_others_of_its_client() {
    for writes in [false, true] {
        let two = Two::new().await;
        let (mut loops, mut waits) = (two.read(0), two.write(0));
        if writes {
            std::mem::swap(&mut loops, &mut waits);
        }
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let looping = tokio::spawn(async move {
            loop {
                let guard = loops.lock().await.expect("free");
                counted.fetch_add(1, Ordering::SeqCst);
                guard.unlock().await.expect("held");
            }
        });
        eventually("it loops", ms(5_000), || count.load(Ordering::SeqCst) > 10).await;
        let before = count.load(Ordering::SeqCst);
        let waiting = waits.try_lock_for(Duration::from_secs(20)).await;
        let guard = waiting.expect("asked").expect("let in");
        let meanwhile = count.load(Ordering::SeqCst) - before;
        assert!(meanwhile < 5, "{meanwhile} were before it");
        looping.abort();
        let _ = looping.await;
        guard.unlock().await.expect("held");
        two.server.finish(two.clients).await;
    }
}

#[tokio::test]
async fn waiters_that_are_dropped_leave_nothing_and_keep_nobody() {
    let mut two = Two::new().await;
    let writes = two.write(0).lease(LONG).lock().await.expect("free");
    let mut waiting: Vec<_> = (0..12)
        .map(|nth| {
            let client = nth % 2;
            let lock = match nth % 3 {
                0 => two.write(client),
                _ => two.read(client),
            };
            waits(&two.clients[client], &lock)
        })
        .collect();
    two.waiting(0, 6).await;
    two.waiting(1, 6).await;
    two.is_listened_to(1).await;
    for waiter in waiting.drain(2..) {
        waiter.abort();
    }
    let [writer, reader] = <[_; 2]>::try_from(waiting).expect("two");
    writes.unlock().await.expect("held");
    // One of the two comes first.
    let (first, second) = tokio::join!(
        async {
            writer
                .await
                .expect("no panic")
                .expect("free")
                .unlock()
                .await
        },
        async {
            reader
                .await
                .expect("no panic")
                .expect("free")
                .unlock()
                .await
        },
    );
    first.expect("held");
    second.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_and_a_client_that_closes_release_both_parts() {
    let mut two = Two::new().await;
    let (read, write, _) = two.owner(0);
    let writes = write.lock().await.expect("free");
    let reads = read.lock().await.expect("inside");
    drop(writes);
    let control = &mut two.control;
    let downgraded = || control.run(&["HGET", NAME, "mode"]) == "read";
    eventually("only the read hold is left", ms(5_000), downgraded).await;
    drop(reads);
    let control = &mut two.control;
    let is_gone = || control.run(&["KEYS", "*report*"]).is_empty();
    eventually("nothing is left", ms(5_000), is_gone).await;
    for _ in 0..2 {
        write.lock().await.expect("free").detach();
        read.lock().await.expect("inside").detach();
    }
    read.unlock().await.expect("detached");
    write.unlock().await.expect("detached");
    let waiting = waits(&two.clients[1], &two.read(1));
    two.is_listened_to(1).await;
    let report = two.clients[0].close(ms(2_000)).await;
    assert_eq!(report.unconfirmed, 0, "{report:?}");
    let guard = got_soon(waiting).await;
    assert_eq!(two.hash().len(), 2, "the other client's reader");
    guard.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn a_lost_hash_ends_both_parts_and_a_lost_field_one() {
    let watchdog = ms(1_500);
    let mut two = Two::with(|builder| builder.watchdog_timeout(watchdog)).await;
    let (read, write, owner) = two.owner(0);
    for loses in ["hash", "reader", "writer"] {
        let writes = write.lock().await.expect("free");
        let reads = read.lock().await.expect("inside");
        match loses {
            "hash" => two.control.run(&["DEL", NAME]),
            "reader" => two.control.run(&["HDEL", NAME, &owner.to_string()]),
            _ => two.control.run(&["HDEL", NAME, &format!("{owner}:write")]),
        };
        let (lost, kept) = match loses {
            "writer" => (&writes, &reads),
            _ => (&reads, &writes),
        };
        let reason = within(watchdog, lost.lost()).await.expect("in time");
        match loses {
            "hash" => {
                assert_eq!(reason, LossReason::Gone);
                assert_eq!(kept.state(), HoldState::Lost(LossReason::Gone));
            }
            _ => {
                assert_eq!(reason, LossReason::Taken);
                assert_eq!(kept.state(), HoldState::Held);
            }
        }
        for guard in [reads, writes] {
            let (was_held, released) = (!guard.is_lost(), guard.unlock().await);
            assert_eq!(released.is_ok(), was_held, "{released:?}");
        }
        // What the test took away may have left a key of the reader, or a mode.
        two.control.run(&["FLUSHALL"]);
    }
    two.finish().await;
}

#[tokio::test]
async fn a_forced_unlock_ends_the_holds_that_were_seen() {
    let mut two = Two::new().await;
    let (read, write, _) = two.owner(0);
    assert!(!write.force_unlock().await.expect("asked"));
    let writes = write.lock().await.expect("free");
    let inside = read.lock().await.expect("inside");
    let waiting = waits(&two.clients[1], &two.read(1));
    two.is_listened_to(1).await;
    assert!(two.read(0).force_unlock().await.expect("asked"));
    let beside = got_soon(waiting).await;
    for guard in [writes, inside] {
        assert_eq!(guard.state(), HoldState::Lost(LossReason::Gone));
        drop(guard);
    }
    // The only reader that is left is of the other client.
    assert_eq!(two.hash().len(), 2);
    let mine = two.read(0).lock().await.expect("beside it");
    assert!(two.write(1).force_unlock().await.expect("asked"));
    assert_eq!(two.shown(), "");
    assert_eq!(two.read_keys().len(), 0);
    assert_eq!(beside.state(), HoldState::Lost(LossReason::Gone));
    drop(beside);
    let mine = mine.unlock().await;
    assert_matches!(mine, Err(Error::Lost { .. }));
    two.finish().await;
}

/// While one client has the name for reading and writing, no other kind has it, and the other way round.
#[tokio::test]
async fn one_name_is_of_both_parts_or_of_another_kind() {
    let two = Two::new().await;
    let plain = two.clients[0].lock(NAME);
    let reads = two.read(0).lock().await.expect("free");
    let refused = plain.try_lock().await;
    assert_matches!(refused, Err(Error::OtherKind { .. }));
    let elsewhere = two.clients[1].lock(NAME).try_lock().await;
    assert_matches!(elsewhere, Ok(None) | Err(Error::NotALock { .. }));
    reads.unlock().await.expect("held");
    let held = plain.lock().await.expect("free");
    for client in [0, 1] {
        for lock in [two.read(client), two.write(client)] {
            let refused = lock.owned_by(&two.clients[client].owner()).try_lock().await;
            match client {
                0 => assert_matches!(refused, Err(Error::OtherKind { .. })),
                _ => assert_matches!(refused, Err(Error::NotALock { .. })),
            }
        }
    }
    held.unlock().await.expect("held");
    two.finish().await;
}

/// A reader that is in lets others of its client in although a writer queues; the first gap between them lets the
/// writer in.
#[tokio::test]
async fn a_queued_writer_gets_the_first_gap_between_readers() {
    let two = Two::new().await;
    let reads = two.read(0).lease(LONG).lock().await.expect("free");
    let writer = waits(&two.clients[0], &two.write(0).lease(LONG));
    two.waiting(0, 1).await;
    let beside = two.read(0).owned_by(&two.clients[0].owner());
    let tried = beside.try_lock().await.expect("asked").expect("beside it");
    let queued = within(ms(1_000), beside.lock()).await.expect("no wait");
    let queued = queued.expect("nested");
    tried.unlock().await.expect("held");
    queued.unlock().await.expect("held");
    assert!(!writer.is_finished());
    let start = Instant::now();
    reads.unlock().await.expect("held");
    let writes = writer.await.expect("no panic").expect("free");
    let took = start.elapsed();
    assert!(took < ms(50) + stalls(start), "{took:?}");
    writes.unlock().await.expect("held");
    two.finish().await;
}

#[tokio::test]
async fn a_fixed_lease_of_either_part_is_extended() {
    let mut two = Two::new().await;
    let (read, write, _) = two.owner(0);
    for lock in [&read, &write] {
        let guard = lock
            .lease(Duration::from_secs(5))
            .lock()
            .await
            .expect("free");
        assert!(two.control.pttl(NAME) <= 5_000);
        guard.extend(Duration::from_secs(60)).await.expect("held");
        let keys = two.read_keys();
        for key in keys.iter().map(String::as_str).chain([NAME]) {
            assert!(two.control.pttl(key) > 50_000, "{key}");
        }
        // A read hold is certain for a watchdog timeout only.
        let left = guard
            .valid_until()
            .saturating_duration_since(Instant::now());
        assert_eq!(left <= LONG, keys.len() == 1, "{left:?}");
        guard.unlock().await.expect("held");
    }
    two.finish().await;
}

/// `eval` runs under a hold of either part, and not after it.
#[tokio::test]
async fn guarded_writes_run_under_both_parts() {
    let mut two = Two::new().await;
    let (read, write, _) = two.owner(0);
    for lock in [&read, &write] {
        let guard = lock.lock().await.expect("free");
        let script = Script::new("return redis.call('incr', KEYS[1])").expect("without flags");
        let written = guard.eval(&script, &["written"], &[] as &[&str]).await;
        written.expect("held");
        two.control.run(&["DEL", NAME]);
        let late = guard.eval(&script, &["written"], &[] as &[&str]).await;
        assert_matches!(late, Err(Error::Lost { .. }));
        two.control.run(&["FLUSHALL"]);
    }
    two.finish().await;
}

/// The reply to a release is lost: it is sent again, and frees no later hold.
#[tokio::test]
async fn a_release_whose_reply_is_lost_is_sent_again() {
    let two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let client = LockClient::connect(&proxy.url()).await.expect("reachable");
    let owner = client.owner();
    for kind in [LockKind::Read, LockKind::Write] {
        let lock = client.lock_of(kind, NAME).owned_by(&owner);
        let guard = lock.lock().await.expect("free");
        proxy.rule(Fate::LoseReply, 1, |words| {
            words[0].eq_ignore_ascii_case("evalsha") && words.iter().any(|word| word == NAME)
        });
        guard.unlock().await.expect("released");
        let again = lock.lock().await.expect("free");
        assert_eq!(again.state(), HoldState::Held);
        again.unlock().await.expect("held");
    }
    client.close(ms(1_000)).await;
    proxy.stop().await;
    two.finish().await;
}

/// Which owners hold which part, and that an owner that only reads may outlast others.
#[tokio::test]
async fn all_holders_are_seen_with_their_own_leases() {
    let two = Two::new().await;
    let report = two.clients[1].rw_lock(NAME);
    assert_eq!(report.name(), NAME);
    assert_eq!(report.inspect().await.expect("asked"), None);
    let (read, write, owner) = two.owner(0);
    let writes = write.lease(LONG).lock().await.expect("free");
    let reads = read.lease(LONG * 10).lock().await.expect("inside");
    let seen = report.inspect().await.expect("asked").expect("held");
    let writer = seen.writer.expect("it writes");
    assert_eq!(
        (writer.owner, writer.hold_count),
        (format!("{owner}:write"), 1)
    );
    assert_eq!(seen.readers.len(), 1);
    assert_eq!(seen.readers[0].owner, owner.to_string());
    writes.unlock().await.expect("held");
    let short = two.read(1).lease(LONG).lock().await.expect("free");
    let again = two.read(1).lease(LONG).lock().await.expect("nested");
    let seen = report.inspect().await.expect("asked").expect("held");
    assert_eq!(seen.writer, None);
    assert_eq!(seen.readers.len(), 2);
    for reader in seen.readers {
        let left = reader.lease_left.expect("it ends");
        match reader.owner == owner.to_string() {
            true => assert!(left > LONG * 9 && reader.hold_count == 1, "{left:?}"),
            false => assert!(left <= LONG && reader.hold_count == 2, "{left:?}"),
        }
    }
    // The part as a whole lasts as long as the longest.
    let left = report.read().lease_left().await.expect("asked");
    assert!(left > Some(LONG * 9), "{left:?}");
    assert!(!report.write().is_locked().await.expect("asked"));
    assert_eq!(report.write().inspect().await.expect("asked"), None);
    assert_eq!(report.write().lease_left().await.expect("asked"), None);
    for guard in [again, short, reads] {
        guard.unlock().await.expect("held");
    }
    two.finish().await;
}

/// A reader that died has no key any more, and the lock lasts for as long as others wanted it.
#[tokio::test]
async fn of_a_reader_whose_key_has_ended_nothing_is_left() {
    let mut two = Two::new().await;
    let (control, report) = (&mut two.control, two.clients[0].rw_lock(NAME));
    control.run(&["HSET", NAME, "mode", "read", "another:1", "1"]);
    control.run(&["PEXPIRE", NAME, "20000"]);
    let read = report.read();
    assert!(read.is_locked().await.expect("asked"));
    let seen = read.inspect().await.expect("asked").expect("there");
    assert_eq!(seen.lease_left, Some(Duration::ZERO));
    assert_eq!(
        read.lease_left().await.expect("asked"),
        Some(Duration::ZERO)
    );
    control.run(&["DEL", NAME]);
    two.finish().await;
}

/// After a reconnect without a fence new holds get another field; what is taken inside of an older hold keeps that
/// one's.
#[tokio::test]
async fn without_a_fence_a_read_inside_of_an_older_write_hold_has_its_field() {
    let two = Two::new().await;
    let proxy = Proxy::start(two.server.port).await;
    let client = LockClient::builder().connection_fence(false);
    let client = client.connect(&proxy.url()).await.expect("reachable");
    let owner = client.owner();
    let [read, write] =
        [LockKind::Read, LockKind::Write].map(|kind| client.lock_of(kind, NAME).owned_by(&owner));
    let writes = write.lock().await.expect("free");
    proxy.cut_all();
    eventually("it connects again", ms(5_000), || {
        client.stats().reconnects_total > 0
    })
    .await;
    let inside = within(ms(5_000), read.lock()).await.expect("in time");
    let inside = inside.expect("inside");
    assert_eq!(read.hold_count().await.expect("asked"), 1);
    let nested = write.lock().await.expect("nested");
    for guard in [nested, writes, inside] {
        guard.unlock().await.expect("held");
    }
    let later = write.lock().await.expect("free");
    let holder = two.write(0).inspect().await.expect("asked").expect("held");
    assert_ne!(holder.owner, format!("{owner}:write"));
    let inside = read.lock().await.expect("inside");
    later.unlock().await.expect("held");
    inside.unlock().await.expect("held");
    client.close(ms(1_000)).await;
    proxy.stop().await;
    two.finish().await;
}

/// All keys of a lock are in one slot, and its messages reach the callers that wait at the same primary.
#[tokio::test]
async fn in_a_cluster_both_parts_exclude_and_wake_at_every_primary() {
    let cluster = Cluster::start(false).await;
    let connect = || async {
        LockClient::connect(&cluster.url())
            .await
            .expect("reachable")
    };
    let (client, other) = (connect().await, connect().await);
    for nth in 0..3 {
        for name in [
            cluster.key_at(nth, "report"),
            format!("{{{}}}:tagged", cluster.key_at(nth, "tag")),
        ] {
            let [read, write] =
                [LockKind::Read, LockKind::Write].map(|kind| client.lock_of(kind, &*name));
            let [reads, writes] = [LockKind::Read, LockKind::Write]
                .map(|kind| other.lock_of(kind, &*name).lease(LONG));
            let guard = write.lock().await.expect("free");
            let inside = read.lock().await.expect("inside");
            assert_eq!(
                cluster.keys().len(),
                2,
                "the lock, and the key of a read hold"
            );
            assert_eq!(cluster.control(nth).number(&["DBSIZE"]), 2);
            let reader = waits(&other, &reads);
            let waiting = || other.stats().subscriptions == 1;
            eventually("it listens", ms(5_000), waiting).await;
            guard.unlock().await.expect("held");
            let beside = got_soon(reader).await;
            beside.unlock().await.expect("held");
            let writer = waits(&other, &writes);
            let waiting = || other.stats().subscriptions == 1 && other.stats().waiting == 1;
            eventually("it listens", ms(5_000), waiting).await;
            inside.unlock().await.expect("held");
            got_soon(writer).await.unlock().await.expect("held");
        }
    }
    eventually("no key is left", ms(5_000), || cluster.keys().is_empty()).await;
    for client in [client, other] {
        client.close(ms(1_000)).await;
    }
}

/// Replicas have what a hold of either part is, and confirm its renewals.
#[tokio::test]
async fn replicas_confirm_holds_of_both_parts() {
    let watchdog = ms(4_500);
    let two =
        Two::with(|builder| builder.watchdog_timeout(watchdog).command_timeout(ms(750))).await;
    let replica = replicas_of(&two.server, 1).await.remove(0);
    let (read, write, owner) = two.owner(0);
    let parts = [&write, &read].map(|lock| lock.sync_replicas(1, ms(700)));
    let mut guards = Vec::new();
    for (lock, field) in parts
        .iter()
        .zip([format!("{owner}:write"), owner.to_string()])
    {
        guards.push(lock.lock().await.expect("the replica has it"));
        assert_eq!(replica.control().run(&["HGET", NAME, &field]), "1");
    }
    let first = guards[0].valid_until().max(guards[1].valid_until());
    for guard in &guards {
        let renewed = || guard.valid_until() > first + ms(500);
        eventually("the replica confirms renewals", watchdog * 3, renewed).await;
        assert_eq!(guard.state(), HoldState::Held);
    }
    for guard in guards {
        guard.unlock().await.expect("held");
    }
    drop(replica);
    two.finish().await;
}

/// Its callers queue for one lock, whichever part they want, and an attempt goes past none of them.
#[tokio::test]
async fn a_reader_that_queues_gets_in_beside_writers_of_its_client_that_only_try() {
    const ROUNDS: usize = 20;
    let two = Two::new().await;
    let (writes, stopped) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let pollers = (0..64).map(|_| {
        let (_, write, _) = two.owner(0);
        let (writes, stopped) = (Arc::clone(&writes), Arc::clone(&stopped));
        tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(guard) = write.try_lock().await.expect("asked") {
                    writes.fetch_add(1, Ordering::Relaxed);
                    guard.unlock().await.expect("held");
                }
            }
        })
    });
    let pollers: Vec<_> = pollers.collect();
    let so_far = || writes.load(Ordering::Relaxed);
    let mut before_it = 0;
    for _ in 0..ROUNDS {
        let before = so_far();
        eventually("they write", ms(10_000), || so_far() > before).await;
        let queued = so_far();
        let reading = within(ms(10_000), two.read(0).lock()).await;
        let guard = reading.expect("in time").expect("free");
        before_it += so_far() - queued;
        guard.unlock().await.expect("held");
    }
    stopped.store(true, Ordering::Relaxed);
    for poller in pollers {
        poller.await.expect("no panic");
    }
    // The one that is in when it queues, and those whose attempts are under way.
    assert!(
        before_it <= 3 * ROUNDS,
        "{before_it} wrote before {ROUNDS} reads"
    );
    two.finish().await;
}

#[tokio::test]
async fn a_loss_names_the_part_whose_hold_was_lost() {
    let server = TestServer::new();
    let client = server.client().await;
    let (one, all) = (
        client.rw_lock("part"),
        MultiLock::new([client.rw_lock("part").read()]).expect("one lock"),
    );
    for (part, words) in [
        (one.read(), "the read hold"),
        (one.write(), "the write hold"),
    ] {
        let lock = part.lease(ms(30_000));
        let guard = lock.lock().await.expect("free");
        assert!(lock.force_unlock().await.expect("answered"));
        let said = format!("{words} of lock `part` was lost: ");
        let nested = lock.lock().await.map(drop);
        let calls = [nested, guard.extend(ms(40_000)).await, guard.unlock().await];
        for error in calls.map(|call| call.expect_err("it is lost")) {
            let kind = part.kind();
            assert_matches!(&error, Error::Lost { kind: found, .. } if *found == kind);
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }
    let guard = all.lock().await.expect("free");
    assert!(one.read().force_unlock().await.expect("answered"));
    let loss = guard.lost().await;
    assert!(loss.to_string().starts_with("read lock `part`: "), "{loss}");
    let error = guard.unlock().await.expect_err("it is lost");
    assert!(
        error
            .to_string()
            .starts_with("the read hold of lock `part`"),
        "{error}"
    );
    server.finish([client]).await;
}

/// More of them than ask in one step.
#[tokio::test]
async fn hundreds_of_readers_get_in_together() {
    const READERS: usize = 250;
    let two = Two::new().await;
    let writes = two.write(1).lock().await.expect("free");
    let all_in = Arc::new(tokio::sync::Barrier::new(READERS));
    let readers = (0..READERS).map(|_| {
        let (lock, all_in) = (two.read(0), Arc::clone(&all_in));
        tokio::spawn(async move {
            let reads = lock.lock().await.expect("no writer is left");
            all_in.wait().await;
            reads.unlock().await.expect("held");
        })
    });
    let readers: Vec<_> = readers.collect();
    let waiting = || two.clients[0].stats().waiting == READERS;
    eventually("they queue", ms(5_000), waiting).await;
    writes.unlock().await.expect("held");
    for reader in readers {
        let ended = within(ms(10_000), reader).await;
        ended.expect("all are in").expect("no panic");
    }
    two.finish().await;
}
