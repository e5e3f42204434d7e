//! A lock at several servers while a minority of them stops, dies and comes back: two callers are never inside at the
//! same time, and an acquisition costs no more than the limit for the answers of a round.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{Error, HoldState, LockClient, RedHold, RedLock};
use test_support::{TestServer, eventually, may_take, ms, stalls, tokio};

/// The watchdog's lease of these tests. A server that has lost its data stays away for longer.
const LEASE: Duration = ms(1_200);

const AWAY: Duration = ms(1_300);

const MEMBER: Duration = ms(250);

/// Independent servers, with a client of each for two processes.
struct Servers {
    servers: Vec<TestServer>,
    processes: [Vec<LockClient>; 2],
}

impl Servers {
    async fn new(count: usize) -> Self {
        Self::with(count, LEASE, ms(350)).await
    }

    async fn with(count: usize, lease: Duration, command: Duration) -> Self {
        let servers: Vec<_> = (0..count).map(|_| TestServer::new()).collect();
        let mut processes = [Vec::new(), Vec::new()];
        for server in &servers {
            for clients in &mut processes {
                let client = server.client_with(|builder| {
                    builder.watchdog_timeout(lease).command_timeout(command)
                });
                clients.push(client.await);
            }
        }
        Self { servers, processes }
    }

    fn lock(&self, process: usize) -> RedLock {
        let members = self.processes[process]
            .iter()
            .map(|client| client.lock("red"));
        RedLock::new(members)
            .expect("servers of their own")
            .member_timeout(MEMBER)
    }

    /// Waits until all clients are connected, and nothing of an earlier acquisition is left.
    async fn settled(&self) {
        let is_settled = |client: &LockClient| client.is_connected() && client.stats().entries == 0;
        eventually("all clients are idle", ms(10_000), || {
            self.processes.iter().flatten().all(is_settled)
        })
        .await;
        let exists = |server: &TestServer| server.control().number(&["EXISTS", "red"]) == 1;
        eventually("nothing is left", ms(10_000), || {
            !self.servers.iter().any(exists)
        })
        .await;
    }

    async fn finish(mut self) {
        self.settled().await;
        let last = self.servers.pop().expect("servers");
        last.finish(self.processes.into_iter().flatten()).await;
    }
}

/// The callers that take turns, each with the hold that it has.
#[derive(Default)]
struct Callers {
    holds: Mutex<[Option<RedHold>; 4]>,
    turns: AtomicUsize,
    over: AtomicBool,
}

impl Callers {
    /// Asserts that one of them at most has the lock at this moment. A hold that may be lost is none.
    fn look(&self) {
        let holds = self.holds.lock().expect("unpoisoned");
        let now = Instant::now();
        let has_it = |hold: &&RedHold| hold.state() == HoldState::Held && hold.valid_until() > now;
        let inside: Vec<_> = holds.iter().flatten().filter(has_it).collect();
        assert!(inside.len() <= 1, "{inside:?}");
    }

    fn set(&self, nth: usize, hold: Option<RedHold>) {
        self.holds.lock().expect("unpoisoned")[nth] = hold;
    }

    async fn takes_turns(self: Arc<Self>, nth: usize, lock: RedLock) {
        for turn in 0.. {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let guard = match lock.try_lock_for(ms(2_000)).await {
                Ok(Some(guard)) => guard,
                Ok(None) => continue,
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    continue;
                }
            };
            self.set(nth, Some(guard.clone()));
            self.look();
            self.turns.fetch_add(1, Ordering::SeqCst);
            // Now and then for longer than a renewal takes to be due, so that a server fails in the middle.
            let long = turn % 8 == nth;
            tokio::time::sleep(if long { LEASE / 2 } else { ms(3) }).await;
            self.look();
            self.set(nth, None);
            if let Err(error) = guard.unlock().await {
                let is_lost = matches!(error, Error::Lost { .. });
                assert!(is_lost || error.is_retryable(), "{error}");
            }
        }
    }

    /// Lasts for this long, and until a caller has had its turn in it.
    async fn phase(&self, what: &str, time: Duration) {
        let (before, end) = (self.turns.load(Ordering::SeqCst), Instant::now() + time);
        eventually(what, time + ms(10_000), || {
            Instant::now() > end && self.turns.load(Ordering::SeqCst) > before
        })
        .await;
    }
}

/// Four callers of two processes, while `faults` does harm to the servers.
async fn never_inside_together(
    count: usize,
    faults: impl AsyncFnOnce(&mut [TestServer], &Callers),
) {
    may_take(Duration::from_secs(180));
    let mut servers = Servers::new(count).await;
    let callers = Arc::new(Callers::default());
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..4 {
        tasks.spawn(Arc::clone(&callers).takes_turns(nth, servers.lock(nth % 2)));
    }
    callers.phase("all servers are there", ms(100)).await;
    faults(servers.servers.as_mut_slice(), &*callers).await;
    callers.over.store(true, Ordering::SeqCst);
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    println!("{} turns", callers.turns.load(Ordering::SeqCst));
    servers.finish().await;
}

#[tokio::test]
async fn while_each_of_three_servers_stops_and_dies_two_callers_are_never_inside_together() {
    never_inside_together(3, async |servers: &mut [TestServer], callers: &Callers| {
        for server in servers {
            server.pause();
            callers.phase("one does not respond", ms(600)).await;
            server.resume();
            callers.phase("it goes on", ms(100)).await;
            server.kill();
            callers.phase("it is away", AWAY).await;
            server.start_again();
            callers.phase("it is back, and empty", ms(100)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn while_two_of_five_servers_stop_and_die_two_callers_are_never_inside_together() {
    never_inside_together(5, async |servers: &mut [TestServer], callers: &Callers| {
        for nth in 0..5 {
            let other = (nth + 2) % 5;
            servers[nth].pause();
            servers[other].kill();
            callers.phase("two do not respond", ms(600)).await;
            servers[nth].resume();
            callers.phase("one goes on", AWAY - ms(600)).await;
            servers[other].start_again();
            callers.phase("both are back", ms(100)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_minority_that_dies_costs_an_acquisition_no_more_than_the_limit_of_a_round() {
    const LIMIT: Duration = ms(1_000);
    may_take(Duration::from_secs(180));
    for count in [3, 5] {
        let mut servers = Servers::with(count, ms(10_000), ms(2_000)).await;
        for nth in 0..count {
            let minority = (0..count / 2).map(|next| (nth + next) % count);
            minority.clone().for_each(|nth| servers.servers[nth].kill());
            let lock = servers.lock(nth % 2).member_timeout(LIMIT);
            let start = Instant::now();
            let found = lock.try_lock().await;
            let took = start.elapsed();
            let guard = found.expect("a quorum answers").expect("free");
            let limit = LIMIT + ms(100) + stalls(start);
            assert!(took < limit, "without {nth} of {count}: {took:?}");
            assert_eq!(guard.servers(), count - count / 2);
            let other = servers.lock((nth + 1) % 2).member_timeout(LIMIT);
            let other = other.try_lock().await;
            assert!(other.expect("a quorum answers").is_none());
            let start = Instant::now();
            guard.unlock().await.expect("a quorum confirms");
            let took = start.elapsed();
            let limit = LIMIT + ms(100) + stalls(start);
            assert!(took < limit, "unlock without {nth} of {count}: {took:?}");
            minority.for_each(|nth| servers.servers[nth].start_again());
            servers.settled().await;
        }
        servers.finish().await;
    }
}
