//! A client's end of a simulated connection: a stream of bytes.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use redisson_lock::test_util::{BoxFuture, ByteStream, ConnectionError, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::cluster;
use super::command::Command;
use super::network::Opened;
use super::resp::Incoming;
use super::server::Server;

/// Where a simulated client connects to, and as whom.
#[derive(Clone)]
pub struct Access {
    server: Arc<Server>,
    client: usize,
    node: usize,
}

impl Access {
    pub fn new(server: &Arc<Server>, client: usize) -> Self {
        Self {
            server: Arc::clone(server),
            client,
            node: 0,
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl Transport for Access {
    fn open(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, ConnectionError>> {
        Box::pin(async move {
            let (delay, opened) = self.server.connect(self.client, self.node);
            // Cancel safety of the simulation itself: a connection whose opening was dropped is closed.
            let stream = opened.map(|Opened { serial, arrived }| Stream {
                server: Arc::clone(&self.server),
                serial,
                incoming: Incoming::default(),
                arrived,
                delay: None,
            });
            sleep(delay).await;
            match stream {
                Some(stream) => Ok(Box::new(stream) as Box<dyn ByteStream>),
                None => Err(ConnectionError::Lost("connection refused".to_owned())),
            }
        })
    }

    fn before_hand_over(&self) -> BoxFuture<'static, ()> {
        let suspended = self.server.state.lock().suspended.remove(&self.client);
        match suspended {
            Some((until, time)) if Instant::now() <= until => {
                self.server.observer.suspended(time);
                Box::pin(sleep(time))
            }
            _ => Box::pin(std::future::ready(())),
        }
    }

    fn later(&self) -> BoxFuture<'static, ()> {
        match self.server.polled_late() {
            Some(delay) => Box::pin(sleep(delay)),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn nodes(&self) -> Vec<(String, u16)> {
        match self.server.keyspaces.len() {
            1 => Vec::new(),
            nodes => (0..nodes).map(cluster::address).collect(),
        }
    }

    fn leading_to(&self, _host: &str, port: u16) -> Arc<dyn Transport> {
        Arc::new(Self {
            node: cluster::node_at(port),
            ..self.clone()
        })
    }
}

/// What has arrived at a client, and it has not read.
#[derive(Default)]
pub(super) struct Arrived(Mutex<ArrivedState>);

#[derive(Default)]
struct ArrivedState {
    /// Each not to be read before its instant.
    parts: VecDeque<(Instant, Vec<u8>)>,
    has_ended: bool,
    reader: Option<Waker>,
}

impl Arrived {
    pub(super) fn push(&self, at: Instant, bytes: Vec<u8>) {
        self.change(|state| state.parts.push_back((at, bytes)));
    }

    /// Nothing more will come.
    pub(super) fn end(&self) {
        let now = Instant::now();
        self.change(|state| {
            // One that is read late keeps those behind it: nothing is lost from the middle of a stream.
            let parts = state.parts.iter();
            let arrived = parts.take_while(|(at, _)| *at <= now).count();
            state.parts.truncate(arrived);
            state.has_ended = true;
        });
    }

    fn change(&self, change: impl FnOnce(&mut ArrivedState)) {
        let reader = {
            let mut state = self.0.lock();
            change(&mut state);
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// Dropped, it is closed.
struct Stream {
    server: Arc<Server>,
    serial: u64,
    incoming: Incoming,
    arrived: Arc<Arrived>,
    /// Until what has arrived may be read.
    delay: Option<Pin<Box<Sleep>>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.server.close(self.serial);
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let arrived = Arc::clone(&self.arrived);
        let mut state = arrived.0.lock();
        let now = Instant::now();
        while let Some((at, part)) = state.parts.front_mut() {
            if *at > now {
                break;
            }
            let count = part.len().min(buffer.remaining());
            buffer.put_slice(&part[..count]);
            part.drain(..count);
            if !part.is_empty() {
                break;
            }
            state.parts.pop_front();
        }
        if !buffer.filled().is_empty() {
            return Poll::Ready(Ok(()));
        }
        let next = state.parts.front().map(|(at, _)| *at);
        self.delay = next.map(|at| Box::pin(sleep_until(at)));
        if let Some(delay) = &mut self.delay
            && delay.as_mut().poll(context).is_ready()
        {
            context.waker().wake_by_ref();
        }
        if !state.has_ended {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.incoming.extend(bytes);
        while let Some(words) = self.incoming.next() {
            self.server.write(self.serial, Command::parse(words));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
