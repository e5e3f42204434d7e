//! The pauses of those who try again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pause between two attempts. It doubles up to the longest.
pub(crate) struct Backoff {
    pause: Duration,
    longest: Duration,
    scattered: bool,
}

impl Backoff {
    pub(crate) const LONGEST: Duration = Duration::from_secs(1);

    /// Between attempts to connect, up to a second.
    pub(crate) fn new(scattered: bool) -> Self {
        Self {
            pause: Duration::from_millis(20),
            longest: Self::LONGEST,
            scattered,
        }
    }

    /// Between looks at a free lock while it is another owner's turn, up to a second. One that is alive has taken it, and often
    /// released it, before the first.
    pub(crate) fn between_looks(scattered: bool) -> Self {
        Self {
            pause: Duration::from_millis(200),
            ..Self::new(scattered)
        }
    }

    /// Between attempts at a lock that another client holds, up to 128 milliseconds, as those of Redisson's spin
    /// lock.
    pub(crate) fn between_attempts(scattered: bool) -> Self {
        Self {
            pause: Duration::from_millis(1),
            longest: Duration::from_millis(128),
            scattered,
        }
    }

    /// Pauses of a caller that has waited for long beside others: up to 8 milliseconds.
    pub(crate) fn short(scattered: bool) -> Self {
        Self {
            longest: Duration::from_millis(8),
            ..Self::between_attempts(scattered)
        }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let dice = if self.scattered { dice() } else { u32::MAX };
        let pause = scattered(self.pause, dice);
        self.pause = (self.pause * 2).min(self.longest);
        pause
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

/// Between half of the pause and all of it: clients that lost a server at the same time come back
/// at different times.
fn scattered(pause: Duration, dice: u32) -> Duration {
    let half = pause / 2;
    half + half.mul_f64(f64::from(dice) / f64::from(u32::MAX))
}

fn dice() -> u32 {
    // Each state has keys of its own.
    RandomState::new().hash_one(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::tokio;

    #[tokio::test(start_paused = true)]
    async fn those_who_begin_together_go_on_at_different_times_unless_nothing_is_left_to_chance() {
        for (scattered, most) in [(true, 20), (false, 1)] {
            let start = tokio::time::Instant::now();
            let mut moments = std::collections::BTreeSet::new();
            let mut waiting = tokio::task::JoinSet::new();
            for _ in 0..20 {
                waiting.spawn(async move {
                    let mut backoff = Backoff::new(scattered);
                    for _ in 0..8 {
                        backoff.wait().await;
                    }
                    start.elapsed().as_millis() / 20
                });
            }
            moments.extend(waiting.join_all().await);
            assert!(
                moments.len() <= most && moments.len() >= most / 2,
                "{moments:?}"
            );
        }
    }

    #[test]
    fn a_pause_is_scattered_over_its_second_half() {
        let pause = Duration::from_millis(1_000);
        assert_eq!(scattered(pause, 0), Duration::from_millis(500));
        assert_eq!(scattered(pause, u32::MAX), pause);
        let mut tenths = [0; 10];
        for _ in 0..1_000 {
            let after_half = scattered(pause, dice()).as_millis() - 500;
            tenths[(after_half as usize / 50).min(9)] += 1;
        }
        assert!(tenths.iter().all(|&times| times > 30), "{tenths:?}");
    }
}
