//! What sentinels report that are replaced, silent, at odds with themselves, or name another primary.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redisson_lock::{ConnectionFence, Error, LockClient, LockClientBuilder};
use test_support::{
    Events, Fate, Proxy, RELEASE, Scripted, Server, eventually, is_script, ms, stalls, tokio,
};
use tracing::Level;

fn brisk(builder: LockClientBuilder) -> LockClientBuilder {
    builder
        .watchdog_timeout(ms(9_000))
        .command_timeout(ms(1_500))
}

/// A sentinel that reports what a test wants, in front of a plain server.
struct FakeSentinel {
    proxy: Proxy,
    report: Arc<Mutex<Report>>,
    server: Server,
}

#[derive(Default)]
struct Report {
    epoch: u64,
    /// In milliseconds.
    down_after: u64,
    /// Each question finds the next epoch.
    restless: bool,
    primary: u16,
    /// The other sentinels that it knows: the port of each, and the one that identifies it.
    others: Vec<(u16, u16)>,
    silent: bool,
    port: u16,
}

impl Report {
    fn react(&mut self, words: &[String], questions: &AtomicU64) -> Scripted {
        if self.silent {
            return Scripted::Silence;
        }
        if words[0] != "SENTINEL" {
            return Scripted::Pass;
        }
        questions.fetch_add(1, Ordering::SeqCst);
        self.epoch += u64::from(self.restless);
        Scripted::Answer(match &*words[1] {
            "MASTER" => format!(
                "return {{'name','shop','config-epoch','{}','down-after-milliseconds','{}'}}",
                self.epoch, self.down_after
            ),
            "GET-MASTER-ADDR-BY-NAME" => format!("return {{'127.0.0.1','{}'}}", self.primary),
            "SENTINELS" => {
                let others = self.others.iter().map(|(port, id)| {
                    format!(
                        "{{'ip','127.0.0.1','port','{port}','runid','id-{id}','flags','sentinel'}}"
                    )
                });
                format!("return {{{}}}", others.collect::<Vec<_>>().join(","))
            }
            "MYID" => format!("return 'id-{}'", self.port),
            other => panic!("{other} is not asked of sentinels"),
        })
    }
}

impl FakeSentinel {
    async fn start(primary: u16) -> (Self, Arc<AtomicU64>) {
        let server = Server::start();
        let proxy = Proxy::start(server.port).await;
        let report = Arc::new(Mutex::new(Report {
            epoch: 1,
            down_after: 5_000,
            primary,
            port: proxy.port,
            ..Report::default()
        }));
        let questions = Arc::<AtomicU64>::default();
        let (reports, count) = (Arc::clone(&report), Arc::clone(&questions));
        proxy.script(move |words| reports.lock().expect("unpoisoned").react(words, &count));
        let sentinel = Self {
            proxy,
            report,
            server,
        };
        (sentinel, questions)
    }

    fn change(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().expect("unpoisoned"));
    }

    /// How often it was asked this.
    fn asked(&self, what: &str) -> usize {
        let is_it = |words: &&Vec<String>| words[0] == "SENTINEL" && words[1] == what;
        self.proxy.seen().iter().filter(is_it).count()
    }

    /// Waits until it is asked this again.
    async fn is_asked(&self, what: &str) {
        let before = self.asked(what);
        eventually(what, ms(25_000), || self.asked(what) > before).await;
    }

    fn is_listened_to(&self) -> bool {
        let mut control = self.server.control();
        let listeners = control.run(&["PUBSUB", "NUMSUB", "+switch-master"]);
        listeners.ends_with(" 1")
    }

    /// It is gone, with its connections.
    fn end(&self) {
        self.proxy.refuse(true);
        self.proxy.cut_all();
    }
}

fn url(sentinels: &[&FakeSentinel]) -> String {
    let nodes: Vec<_> = sentinels[1..]
        .iter()
        .map(|sentinel| format!("&node=127.0.0.1:{}", sentinel.proxy.port))
        .collect();
    format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=shop{}",
        sentinels[0].proxy.port,
        nodes.concat()
    )
}

async fn connect(url: &str) -> LockClient {
    brisk(LockClient::builder())
        .connect(url)
        .await
        .expect("it responds")
}

#[tokio::test]
async fn a_failover_is_followed_after_all_named_sentinels_were_replaced() {
    let (first, second) = (Server::start(), Server::start());
    let (named, _) = FakeSentinel::start(first.port).await;
    let (new, asked) = FakeSentinel::start(first.port).await;
    let client = connect(&url(&[&named])).await;
    let new_port = new.proxy.port;
    named.change(|report| report.others.push((new_port, new_port)));
    let guard = client.lock("a").lock().await.expect("free");
    eventually("the new sentinel is asked", ms(15_000), || {
        asked.load(Ordering::SeqCst) > 0
    })
    .await;
    named.end();
    new.change(|report| {
        report.epoch = 2;
        report.primary = second.port;
    });
    let followed = || client.stats().failovers_total == 1;
    eventually("the failover is followed", ms(5_000), followed).await;
    drop(guard);
    let guard = client.lock("b").lock().await.expect("free");
    assert_eq!(second.control().count("b"), 1);
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_sentinel_whose_epoch_changes_at_each_question_is_not_asked_without_a_pause() {
    let server = Server::start();
    let (steady, _) = FakeSentinel::start(server.port).await;
    let (restless, asked) = FakeSentinel::start(server.port).await;
    restless.change(|report| report.restless = true);
    let start = Instant::now();
    let client = connect(&url(&[&restless, &steady])).await;
    tokio::time::sleep(ms(3_000)).await;
    let (asked, took) = (asked.load(Ordering::SeqCst), start.elapsed());
    let bound = 60 * took.as_secs().max(1);
    assert!(asked <= bound, "{asked} questions in {took:?}");
    let guard = client.lock("a").lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_client_connects_while_two_of_three_sentinels_hang() {
    let server = Server::start();
    let (first, _) = FakeSentinel::start(server.port).await;
    let (second, _) = FakeSentinel::start(server.port).await;
    let (third, _) = FakeSentinel::start(server.port).await;
    first.change(|report| report.silent = true);
    second.change(|report| report.silent = true);
    let start = Instant::now();
    let client = LockClient::connect(&url(&[&first, &second, &third]))
        .await
        .expect("one responds");
    let took = start.elapsed().saturating_sub(stalls(start));
    assert!(took < ms(1_500), "{took:?}");
    let guard = client.lock("a").lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// The primary goes on being used, and a failover would not be noticed.
#[tokio::test]
async fn a_sentinel_whose_password_has_changed_is_warned_of_once() {
    let (events, _here) = Events::of_this_thread();
    let server = Server::start();
    let (sentinel, _) = FakeSentinel::start(server.port).await;
    let client = connect(&url(&[&sentinel])).await;
    let mut control = sentinel.server.control();
    control.run(&["CONFIG", "SET", "requirepass", "changed"]);
    sentinel.proxy.cut_all();
    let warning = "a sentinel refuses this client";
    events.comes(Level::WARN, warning).await;
    let before = sentinel.proxy.arrivals().len();
    let tried = || sentinel.proxy.arrivals().len() >= before + 4;
    eventually("it is tried again", ms(20_000), tried).await;
    assert_eq!(events.count(Level::WARN, warning), 1);
    let guard = client.lock("a").lock().await.expect("free");
    guard.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

/// Which primary they report, about every second; which other sentinels they know, about every ten.
#[tokio::test]
async fn sentinels_are_asked_at_their_intervals() {
    const QUESTIONS: usize = 8;
    let server = Server::start();
    let (sentinel, _) = FakeSentinel::start(server.port).await;
    let client = connect(&url(&[&sentinel])).await;
    let questions = || sentinel.asked("GET-MASTER-ADDR-BY-NAME");
    let (start, before) = (Instant::now(), questions());
    let asked = || questions() >= before + QUESTIONS;
    eventually("it is asked", ms(40_000), asked).await;
    let took = start.elapsed();
    assert!(took >= ms(4_000), "{QUESTIONS} questions in {took:?}");
    let others = sentinel.asked("SENTINELS");
    assert!(
        (1..=QUESTIONS / 2).contains(&others),
        "{others} in {took:?}"
    );
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_sentinel_that_was_away_is_asked_again() {
    let (first, second) = (Server::start(), Server::start());
    let (sentinel, _) = FakeSentinel::start(first.port).await;
    let client = connect(&url(&[&sentinel])).await;
    // It asks over one connection, and listens over another.
    let both = || sentinel.is_listened_to() && sentinel.asked("SENTINELS") > 0;
    eventually("it is connected", ms(10_000), both).await;
    let before = sentinel.proxy.arrivals().len();
    sentinel.end();
    let tried = || sentinel.proxy.arrivals().len() >= before + 4;
    eventually("each is tried again", ms(10_000), tried).await;
    sentinel.change(|report| {
        report.epoch = 2;
        report.primary = second.port;
    });
    sentinel.proxy.refuse(false);
    let followed = || client.stats().failovers_total == 1;
    eventually("the failover is followed", ms(10_000), followed).await;
    client.close(Duration::ZERO).await;
}

/// It reports the same identity as the one that is asked already.
#[tokio::test]
async fn another_address_of_a_known_sentinel_is_not_asked() {
    let server = Server::start();
    let (first, _) = FakeSentinel::start(server.port).await;
    let (second, _) = FakeSentinel::start(server.port).await;
    let alias = Proxy::start(first.server.port).await;
    let client = connect(&url(&[&first, &second])).await;
    for sentinel in [&first, &second] {
        let has_reported = || sentinel.asked("SENTINELS") > 0;
        eventually("it has reported", ms(10_000), has_reported).await;
        // The answers before this question have been read.
        sentinel.is_asked("MASTER").await;
    }
    second.change(|report| report.others.push((alias.port, first.proxy.port)));
    second.is_asked("SENTINELS").await;
    for _ in 0..2 {
        second.is_asked("GET-MASTER-ADDR-BY-NAME").await;
    }
    assert!(alias.arrivals().is_empty());
    client.close(Duration::ZERO).await;
}

/// One sentinel is listened to, and when it is gone the next one.
#[tokio::test]
async fn what_a_sentinel_publishes_has_all_of_them_asked_immediately() {
    const QUESTION: &str = "GET-MASTER-ADDR-BY-NAME";
    let server = Server::start();
    let (first, _) = FakeSentinel::start(server.port).await;
    let (second, _) = FakeSentinel::start(server.port).await;
    let client = connect(&url(&[&first, &second])).await;
    let all = [&first, &second];
    let mut gone = None;
    for _ in 0..2 {
        let is_heard = |nth: &usize| Some(*nth) != gone && all[*nth].is_listened_to();
        let is_one_heard = || (0..2).any(|nth| is_heard(&nth));
        eventually("one is listened to", ms(20_000), is_one_heard).await;
        let heard = (0..2).find(is_heard).expect("just seen");
        let asked = all[gone.map_or(1 - heard, |_| heard)];
        let mut control = all[heard].server.control();
        let mut shortest = Duration::MAX;
        for _ in 0..5 {
            // The next question of every second is a second away.
            asked.is_asked(QUESTION).await;
            let start = Instant::now();
            let published = async { control.run(&["PUBLISH", "+switch-master", "shop"]) };
            tokio::join!(asked.is_asked(QUESTION), published);
            shortest = shortest.min(start.elapsed());
        }
        assert!(shortest < ms(500), "{shortest:?}");
        all[heard].end();
        gone = Some(heard);
    }
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn a_time_to_be_down_that_is_too_short_is_warned_of_once() {
    let text = "down-after-milliseconds is not above the command timeout";
    for (down_after, warnings) in [(1_501, 0), (1_500, 1)] {
        let (events, _here) = Events::of_this_thread();
        let server = Server::start();
        let (sentinel, _) = FakeSentinel::start(server.port).await;
        sentinel.change(|report| report.down_after = down_after);
        let client = connect(&url(&[&sentinel])).await;
        for _ in 0..4 {
            sentinel.is_asked("GET-MASTER-ADDR-BY-NAME").await;
        }
        assert_eq!(events.count(Level::WARN, text), warnings, "{down_after} ms");
        client.close(Duration::ZERO).await;
    }
}

/// With `resolve-hostnames` set, or a name that leads to the same server, the primary has another address.
#[tokio::test]
async fn a_primary_that_gets_another_name_is_fenced_from_its_last_one() {
    let server = Server::start();
    let (by_first, by_second) = (
        Proxy::start(server.port).await,
        Proxy::start(server.port).await,
    );
    let (sentinel, _) = FakeSentinel::start(by_first.port).await;
    let client = connect(&url(&[&sentinel])).await;
    let guard = client.lock("late").lock().await.expect("free");
    by_first.rule(Fate::Late, 1, |words| is_script(words, RELEASE));
    by_first.refuse(true);
    sentinel.change(|report| {
        report.epoch = 2;
        report.primary = by_second.port;
    });
    guard.unlock().await.expect("it is sent again");
    assert_eq!(by_first.kept(), 1, "the first copy is on its way");
    let again = client.lock("late").lock().await.expect("free");
    by_first.deliver().await;
    assert_eq!(server.control().count("late"), 1, "it is still held");
    assert_eq!(client.stats().connection_fence, ConnectionFence::Active);
    again.unlock().await.expect("held");
    client.close(Duration::ZERO).await;
}

#[tokio::test]
async fn sentinels_that_know_no_such_primary_are_an_error_that_names_it() {
    let server = Server::start();
    let url = format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=shop",
        server.port
    );
    // A plain server has no such command.
    let refused = brisk(LockClient::builder()).connect(&url).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}
