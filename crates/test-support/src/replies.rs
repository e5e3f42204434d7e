//! The way back of a connection through the proxy.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};

use crate::commands::{answering, command};

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
    /// A mark is replaced by this error.
    refusing: Mutex<Option<String>>,
}

/// What a reply that passes twice is between, as an answer of the server.
const MARKS: [&str; 2] = [":7260001", ":7260002"];

/// What stands for an error.
const MARK: &str = "7260003";

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
            let refusal = self.refusing.lock().expect("unpoisoned").clone();
            if let Some(refusal) = refusal {
                let Some(refused) = refused(&passing, &refusal) else {
                    continue;
                };
                passing = refused;
                *self.refusing.lock().expect("unpoisoned") = None;
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

    /// What the server gets in place of a command that is refused. It answers that to a subscriber too, unlike a script.
    pub(crate) fn refuse(&self, error: String) -> Vec<u8> {
        *self.refusing.lock().expect("unpoisoned") = Some(error);
        command(&["PING", MARK])
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

/// Replies with the error in place of its mark. `None`: that is not there yet.
fn refused(replies: &[u8], error: &str) -> Option<Vec<u8>> {
    let mark = format!("${}\r\n{MARK}\r\n", MARK.len());
    ["*2\r\n$4\r\npong\r\n", ""].into_iter().find_map(|before| {
        let pong = format!("{before}{mark}").into_bytes();
        let at = replies.windows(pong.len()).position(|part| part == pong)?;
        let error = format!("-{error}\r\n").into_bytes();
        Some([&replies[..at], &error, &replies[at + pong.len()..]].concat())
    })
}
