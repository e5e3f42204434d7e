//! The way back of a connection through the proxy.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};

/// What befalls the replies of one connection.
#[derive(Default)]
pub(crate) struct Replies {
    /// The next one is swallowed.
    losing: AtomicBool,
    lost: Notify,
    /// All of them are.
    silent: AtomicBool,
}

impl Replies {
    pub(crate) async fn pass(
        &self,
        mut from_server: OwnedReadHalf,
        mut to_client: OwnedWriteHalf,
        mut held: watch::Receiver<bool>,
    ) {
        let mut bytes = vec![0; 65_536];
        while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
            if held.wait_for(|held| !held).await.is_err() {
                return;
            }
            if self.silent.load(Ordering::SeqCst) {
                continue;
            }
            if self.losing.load(Ordering::SeqCst) {
                self.lost.notify_one();
            } else if to_client.write_all(&bytes[..read]).await.is_err() {
                return;
            }
        }
    }

    /// Sends a command so many times, and waits until a reply to it was swallowed.
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
