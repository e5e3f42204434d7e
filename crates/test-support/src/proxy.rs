//! A TCP proxy that reads commands: it can hold replies back, lose them, and keep what a cut
//! connection had not delivered yet, to deliver it later.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::commands::{answering, command, parse};
use crate::replies::Replies;

/// What happens to a command that a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Executed; its reply is lost with the connection.
    LoseReply,
    /// The connection is lost before it is executed.
    LoseCommand,
    /// The connection is lost for the client, but the server still has it; the command arrives at
    /// [`Proxy::deliver`].
    Late,
    /// Executed twice in a row; the first reply is dropped, and the second with it if it comes as
    /// quickly. For a connection with one command under way: with several, another reply may be dropped.
    Twice,
    /// Executed twice, the second time a moment later, when other clients may have come in between; only the first
    /// reply passes.
    Again,
    /// Executed, and its reply passes twice: all later replies on the connection are one command late, for as
    /// long as commands are under way.
    Doubled,
    /// Executed, and answered by the proxy itself: `-ERR …` or `:0`.
    Replaced(&'static str),
    /// Not executed, and answered by the proxy itself.
    Instead(&'static str),
    /// The connection stays open, and from this command on nothing passes in either direction.
    Silence,
}

/// What a rule looks at: the words of a command.
type Matches = Box<dyn Fn(&[String]) -> bool + Send>;

/// What a fake node does with a command.
pub enum Scripted {
    /// The server behind it executes it.
    Pass,
    /// The answer is what this Lua script returns, and nothing else is executed.
    Answer(String),
    /// The server answers with this error, and nothing is executed. One at a time on a connection.
    Refuse(String),
    /// From this command on nothing passes in either direction.
    Silence,
}

/// How a fake node reacts to commands.
type Script = Option<Arc<dyn Fn(&[String]) -> Scripted + Send + Sync>>;

/// Which commands are held back.
type Gate = Option<Arc<dyn Fn(&[String]) -> bool + Send + Sync>>;

struct Rule {
    matches: Matches,
    fate: Fate,
    times: usize,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    late: Vec<(OwnedWriteHalf, Vec<u8>)>,
    seen: Vec<Vec<String>>,
    script: Script,
    delay: Duration,
}

pub struct Proxy {
    pub port: u16,
    /// The server's port, for connections from now on.
    to: Arc<AtomicU16>,
    state: Arc<Mutex<State>>,
    /// Replies are held back while this is true.
    hold: watch::Sender<bool>,
    /// Commands that match are held back, and what follows them on their connection.
    gate: watch::Sender<Gate>,
    /// Connections that wait with such a command.
    stuck: Arc<AtomicUsize>,
    refuse: Arc<AtomicBool>,
    arrivals: Arc<Mutex<Vec<Instant>>>,
    cut: Arc<Notify>,
    pub hit: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let (hold, held) = watch::channel(false);
        let (gate, gated) = watch::channel(None);
        let stuck = Arc::new(AtomicUsize::new(0));
        let cut = Arc::new(Notify::new());
        let hit = Arc::new(AtomicUsize::new(0));
        let refuse = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let link = Link {
            state: Arc::clone(&state),
            held,
            gated,
            stuck: Arc::clone(&stuck),
            cut: Arc::clone(&cut),
            hit: Arc::clone(&hit),
        };
        let refusing = Arc::clone(&refuse);
        let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
        let arriving = Arc::clone(&arrivals);
        let to = Arc::new(AtomicU16::new(to));
        let leads = Arc::clone(&to);
        tasks.spawn(async move {
            let mut links = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    return;
                };
                arriving.lock().expect("unpoisoned").push(Instant::now());
                if refusing.load(Ordering::SeqCst) {
                    continue;
                }
                links.spawn(link.clone().serve(client, leads.load(Ordering::SeqCst)));
            }
        });
        Self {
            port,
            to,
            state,
            hold,
            gate,
            stuck,
            refuse,
            arrivals,
            cut,
            hit,
            tasks,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The next `times` commands that match meet this fate.
    pub fn rule(
        &self,
        fate: Fate,
        times: usize,
        matches: impl Fn(&[String]) -> bool + Send + 'static,
    ) {
        let rule = Rule {
            matches: Box::new(matches),
            fate,
            times,
        };
        self.state.lock().expect("unpoisoned").rules.push(rule);
    }

    /// Reacts to every command as the script says, unless a rule is for it.
    pub fn script(&self, script: impl Fn(&[String]) -> Scripted + Send + Sync + 'static) {
        self.state.lock().expect("unpoisoned").script = Some(Arc::new(script));
    }

    /// Commands seen so far, as their words.
    pub fn seen(&self) -> Vec<Vec<String>> {
        self.state.lock().expect("unpoisoned").seen.clone()
    }

    /// Holds every reply back, or lets them go.
    pub fn hold_replies(&self, hold: bool) {
        self.hold.send_replace(hold);
    }

    /// Holds commands back that match, and what follows them on their connection.
    pub fn hold_commands(&self, matches: impl Fn(&[String]) -> bool + Send + Sync + 'static) {
        self.gate.send_replace(Some(Arc::new(matches)));
    }

    /// Lets the commands go that were held back.
    pub fn let_commands_go(&self) {
        self.gate.send_replace(None);
    }

    /// From now on each command of a connection takes this much longer.
    pub fn slow_down(&self, delay: Duration) {
        self.state.lock().expect("unpoisoned").delay = delay;
    }

    /// How many connections wait with a command that is held back.
    pub fn stuck(&self) -> usize {
        self.stuck.load(Ordering::SeqCst)
    }

    /// When connections came in, refused ones included.
    pub fn arrivals(&self) -> Vec<Instant> {
        self.arrivals.lock().expect("unpoisoned").clone()
    }

    /// New connections lead to another server, as behind a name that has moved.
    pub fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::SeqCst);
    }

    /// Accepts and closes new connections immediately.
    pub fn refuse(&self, refuse: bool) {
        self.refuse.store(refuse, Ordering::SeqCst);
    }

    /// Cuts the oldest connection.
    pub fn cut_one(&self) {
        self.cut.notify_one();
    }

    /// Cuts every connection.
    pub fn cut_all(&self) {
        self.cut.notify_waiters();
    }

    /// Delivers what cut connections had not delivered; answers how many there were. The server is
    /// done with them when this returns.
    pub async fn deliver(&self) -> usize {
        let late = std::mem::take(&mut self.state.lock().expect("unpoisoned").late);
        let count = late.len();
        for (mut server, bytes) in late {
            let name = server
                .local_addr()
                .map(|address| format!(" addr={address} "))
                .unwrap_or_default();
            // A connection that was killed meanwhile refuses them: that is the fence at work.
            let _ = server.write_all(&bytes).await;
            let _ = server.shutdown().await;
            // The server executes what it has read before it closes at the end of the stream.
            let client = redis::Client::open(format!(
                "redis://127.0.0.1:{}",
                self.to.load(Ordering::SeqCst)
            ))
            .expect("a valid address");
            let mut control = client.get_connection().expect("the server answers");
            super::eventually(
                "the late commands are through",
                Duration::from_secs(5),
                || {
                    let list: String = redis::cmd("CLIENT")
                        .arg("LIST")
                        .query(&mut control)
                        .expect("answered");
                    !name.is_empty() && !list.contains(&name)
                },
            )
            .await;
        }
        count
    }

    pub fn kept(&self) -> usize {
        self.state.lock().expect("unpoisoned").late.len()
    }

    /// Script calls seen so far, as their words.
    pub fn script_calls(&self) -> Vec<Vec<String>> {
        let state = self.state.lock().expect("unpoisoned");
        state
            .seen
            .iter()
            .filter(|words| words[0].starts_with("EVAL"))
            .cloned()
            .collect()
    }

    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

#[derive(Clone)]
struct Link {
    state: Arc<Mutex<State>>,
    held: watch::Receiver<bool>,
    gated: watch::Receiver<Gate>,
    stuck: Arc<AtomicUsize>,
    cut: Arc<Notify>,
    hit: Arc<AtomicUsize>,
}

impl Link {
    async fn serve(self, client: TcpStream, to: u16) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else {
            return;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let state = Arc::clone(&self.state);
        let cut = Arc::clone(&self.cut);
        let cut = cut.notified();
        let replies = Replies::default();
        let passing = replies.pass(from_server, to_client, self.held.clone());
        let commands = self.pass_commands(from_client, to_server, &replies);
        let kept = tokio::select! {
            () = passing => None,
            kept = commands => kept,
            () = cut => None,
        };
        if let Some(kept) = kept {
            state.lock().expect("unpoisoned").late.push(kept);
        }
    }

    /// Passes commands on until the connection is lost; answers with what the server is still to
    /// get.
    async fn pass_commands(
        &self,
        mut from_client: OwnedReadHalf,
        mut to_server: OwnedWriteHalf,
        replies: &Replies,
    ) -> Option<(OwnedWriteHalf, Vec<u8>)> {
        let mut gated = self.gated.clone();
        let mut pending = Vec::new();
        let mut bytes = vec![0; 65_536];
        loop {
            while let Some((words, length)) = parse(&pending) {
                let raw: Vec<u8> = pending.drain(..length).collect();
                let is_open = |gate: &Gate| !gate.as_ref().is_some_and(|holds| holds(&words));
                if !is_open(&gated.borrow_and_update()) {
                    let _stuck = Stuck::new(&self.stuck);
                    gated.wait_for(is_open).await.ok()?;
                }
                let (script, delay) = {
                    let state = self.state.lock().expect("unpoisoned");
                    (state.script.clone(), state.delay)
                };
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                let scripted = script.map_or(Scripted::Pass, |script| script(&words));
                match self.fate(words) {
                    None => match scripted {
                        Scripted::Pass => to_server.write_all(&raw).await.ok()?,
                        // The server is asked for it, so that it comes in its turn.
                        Scripted::Answer(lua) => {
                            let asking = command(&["EVAL", &lua, "0"]);
                            to_server.write_all(&asking).await.ok()?;
                        }
                        Scripted::Refuse(error) => {
                            to_server.write_all(&replies.refuse(error)).await.ok()?;
                        }
                        Scripted::Silence => {
                            replies.silence();
                            return std::future::pending().await;
                        }
                    },
                    Some(Fate::LoseCommand) => return None,
                    Some(Fate::Silence) => {
                        replies.silence();
                        return std::future::pending().await;
                    }
                    Some(Fate::Late) => return Some((to_server, [raw, pending].concat())),
                    Some(Fate::Replaced(line)) => {
                        // The server is asked for the wrong answer, so that it comes in its turn.
                        let all = [unanswered(raw), answering(line)].concat();
                        to_server.write_all(&all).await.ok()?;
                    }
                    Some(Fate::Instead(line)) => {
                        to_server.write_all(&answering(line)).await.ok()?
                    }
                    Some(Fate::LoseReply) => {
                        replies.lose(&mut to_server, &raw, 1).await;
                        return None;
                    }
                    Some(Fate::Twice) => replies.lose(&mut to_server, &raw, 2).await,
                    Some(Fate::Again) => again(&mut to_server, raw).await.ok()?,
                    Some(Fate::Doubled) => {
                        let all = replies.double(raw);
                        to_server.write_all(&all).await.ok()?;
                    }
                }
            }
            match from_client.read(&mut bytes).await {
                Ok(read @ 1..) => pending.extend_from_slice(&bytes[..read]),
                Ok(0) | Err(_) => return None,
            }
        }
    }

    fn fate(&self, words: Vec<String>) -> Option<Fate> {
        let mut state = self.state.lock().expect("unpoisoned");
        let rule = state
            .rules
            .iter_mut()
            .find(|rule| rule.times > 0 && (rule.matches)(&words));
        let fate = rule.map(|rule| {
            rule.times -= 1;
            rule.fate
        });
        state.seen.push(words);
        drop(state);
        if fate.is_some() {
            self.hit.fetch_add(1, Ordering::SeqCst);
        }
        fate
    }
}

/// Sends a command, and a moment later again, without a reply.
async fn again(to_server: &mut OwnedWriteHalf, raw: Vec<u8>) -> std::io::Result<()> {
    to_server.write_all(&raw).await?;
    tokio::time::sleep(Duration::from_millis(1)).await;
    to_server.write_all(&unanswered(raw)).await
}

/// A command whose reply the server skips.
fn unanswered(raw: Vec<u8>) -> Vec<u8> {
    [command(&["CLIENT", "REPLY", "SKIP"]), raw].concat()
}

/// Counts a connection that is held back, for as long as it is.
struct Stuck(Arc<AtomicUsize>);

impl Stuck {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
