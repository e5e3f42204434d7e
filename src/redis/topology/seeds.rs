//! The first question to the servers of an address: all of them are asked side by side.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::redis::settings::address::Address;
use crate::redis::transport::ConnectionError;

/// The outcome of asking a seed.
pub(in crate::redis) type SeedAnswer<T> = (Address, Result<T, ConnectionError>);

/// Returns the answers in the order of the questions: all of them, or those that have come when `wait` has
/// passed since the first report. A seed that hangs delays the others no longer than that.
///
/// Cancel safety: dropping this future drops the questions.
pub(in crate::redis) async fn answers<T>(
    asking: impl IntoIterator<Item = impl Future<Output = SeedAnswer<T>>>,
    wait: Duration,
) -> Vec<SeedAnswer<T>> {
    let numbered = (0_usize..).zip(asking);
    let mut asking: FuturesUnordered<_> = numbered
        .map(|(nth, asking)| async move { (nth, asking.await) })
        .collect();
    let mut answers = Vec::new();
    let mut until = None;
    loop {
        let next = async {
            match until {
                Some(until) => timeout_at(until, asking.next()).await.ok()?,
                None => asking.next().await,
            }
        };
        let Some((nth, answer)) = next.await else {
            break;
        };
        if answer.1.is_ok() {
            until.get_or_insert_with(|| Instant::now() + wait);
        }
        answers.push((nth, answer));
    }
    answers.sort_by_key(|(nth, _)| *nth);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
