//! The way back of a connection through the proxy.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};

use crate::commands::answering;

/// What befalls the replies of one connection.
#[derive(Default)]
pub(crate) struct Replies {
    /// The next one is swallowed.
    losing: AtomicBool,
    lost: Notify,
    /// All of them are.
    silent: AtomicBool,
    /// One of them passes twice: it is between two marks.
    doubling: AtomicBool,
}

/// What a reply that passes twice is between, as an answer of the server.
const MARKS: [&str; 2] = [":7260001", ":7260002"];

impl Replies {
    pub(crate) async fn pass(
        &self,
        mut from_server: OwnedReadHalf,
        mut to_client: OwnedWriteHalf,
        mut held: watch::Receiver<bool>,
    ) {
        let (mut bytes, mut passing) = (vec![0; 65_536], Vec::new());
        while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
            if held.wait_for(|held| !held).await.is_err() {
                return;
            }
            if self.silent.load(Ordering::SeqCst) {
                continue;
            }
            if self.losing.load(Ordering::SeqCst) {
                self.lost.notify_one();
                continue;
            }
            passing.extend_from_slice(&bytes[..read]);
            // What came while they were held back goes in one write.
            while let Ok(read @ 1..) = from_server.try_read(&mut bytes) {
                passing.extend_from_slice(&bytes[..read]);
            }
            if self.doubling.load(Ordering::SeqCst) {
                let Some(doubled) = doubled(&passing) else {
                    continue;
                };
                passing = doubled;
                self.doubling.store(false, Ordering::SeqCst);
            }
            if to_client.write_all(&passing).await.is_err() {
                return;
            }
            passing.clear();
        }
    }

    /// A command whose reply is to pass twice, as the server gets it.
    pub(crate) fn double(&self, raw: Vec<u8>) -> Vec<u8> {
        self.doubling.store(true, Ordering::SeqCst);
        [answering(MARKS[0]), raw, answering(MARKS[1])].concat()
    }

    /// Sends a command this many times, and waits until a reply to it was swallowed.
    pub(crate) async fn lose(&self, to_server: &mut OwnedWriteHalf, raw: &[u8], sends: usize) {
        self.losing.store(true, Ordering::SeqCst);
        for _ in 0..sends {
            let _ = to_server.write_all(raw).await;
        }
        self.lost.notified().await;
        if sends > 1 {
            self.losing.store(false, Ordering::SeqCst);
        }
    }

    /// From now on all of them are swallowed.
    pub(crate) fn silence(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

/// Replies with the one between the marks twice, without the marks. `None`: they are not all there yet.
fn doubled(replies: &[u8]) -> Option<Vec<u8>> {
    let [start, end] = MARKS.map(|mark| format!("{mark}\r\n").into_bytes());
    let position = |mark: &[u8]| replies.windows(mark.len()).position(|part| part == mark);
    let (from, to) = (position(&start)?, position(&end)?);
    let reply = &replies[from + start.len()..to];
    Some([&replies[..from], reply, reply, &replies[to + end.len()..]].concat())
}
