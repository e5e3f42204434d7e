//! The map of a cluster, as its nodes tell it.
//!
//! A node that sees its cluster working is asked, and of two the one in the higher epoch is believed: one
//! that was cut off tells an old map. A lower epoch than one that was seen is that of a cluster that was made
//! anew, if every node tells it, or those who answer go on telling it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::address::Address;
use super::backoff::Backoff;
use super::connection::{Connection, Failed, Task, connect_error};
use super::map::Map;
use super::probe;
use super::settings::{Expected, Settings};
use super::transport::{Arg, BoxFuture, ConnectionError, Reply, Role};
use crate::error::Error;
use crate::runtime::event;
use crate::server_error;
use crate::wire::Announce;

/// Which slots each primary has.
type Slots = Vec<(RangeInclusive<u16>, Address)>;

/// Asks for the map, over a connection of its own.
pub(super) struct Scout {
    settings: Arc<Settings>,
    current: Option<(Address, Connection, Task)>,
    /// The highest epoch that was seen.
    epoch: u64,
    /// Since when those who answer tell a lower one, and somebody does not answer.
    behind_since: Option<Instant>,
}

/// What a node has found, and the connection to it.
struct Told {
    epoch: u64,
    slots: Slots,
    connection: Connection,
    task: Task,
}

impl Scout {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            current: None,
            epoch: 0,
            behind_since: None,
        }
    }

    /// Fills the map for the first time.
    pub(super) async fn begin(&mut self, map: &Map, known: &[Address]) -> Result<(), Error> {
        let time_limit = self.settings.command_timeout / known.len().max(1) as u32;
        let reported = self.query(known, time_limit).await;
        map.apply(&reported.map_err(|failed| failed.into_error(&self.settings))?);
        Ok(())
    }

    /// How releases are announced. A node that was asked for the map is asked whether it knows sharded
    /// channels.
    pub(super) async fn announce(&mut self, wanted: Announce) -> Result<Announce, Error> {
        let Some((_, connection, _)) = self.current.as_mut().filter(|_| wanted.hears_sharded())
        else {
            return Ok(wanted);
        };
        let words = [Arg::Fixed("SHARDNUMSUB")];
        let answer = connection.command("PUBSUB", &words, self.settings.command_timeout);
        match answer.await {
            Ok(_) => Ok(wanted),
            // It knows what it names. Redis 6.2 names `pubsub` alone, whatever is behind it.
            Err(ConnectionError::Refused(text))
                if server_error::is_permission(&text) && text.contains("shardnumsub") =>
            {
                Ok(wanted)
            }
            Err(ConnectionError::Refused(_)) if wanted == Announce::Auto => Ok(Announce::Classic),
            Err(ConnectionError::Refused(_)) => Err(Error::InvalidConfig {
                what: "announce",
                problem: "the servers have no sharded channels, which came with Redis 7.0"
                    .to_owned(),
            }),
            Err(problem) => Err(connect_error(&self.settings, problem)),
        }
    }

    /// Starts what keeps the map right.
    pub(super) fn keep(self, map: &Arc<Map>, known: Vec<Address>) {
        map.around.spawn(self.keep_on(Arc::clone(map), known));
    }

    /// Asks for the map again when it is in doubt, and now and then.
    async fn keep_on(mut self, map: Arc<Map>, known: Vec<Address>) {
        let mut backoff = Backoff::new(self.settings.is_scattered());
        loop {
            let in_doubt = map.around.outdated.notified();
            let _ = tokio::time::timeout(BETWEEN, in_doubt).await;
            loop {
                let started = Instant::now();
                match self
                    .query(&Self::candidates(&map, &known), TIME_LIMIT)
                    .await
                {
                    Ok(slots) => {
                        map.apply(&slots);
                        backoff = Backoff::new(self.settings.is_scattered());
                        // Everybody who has found that a server is gone says so.
                        tokio::time::sleep_until(started + APART).await;
                        break;
                    }
                    Err(problem) => {
                        event!(DEBUG, %problem, "no node of the cluster tells its slots");
                        backoff.wait().await;
                    }
                }
            }
        }
    }

    /// Whom to ask, one after the other: those who have slots first. Not those who had some once: where nodes
    /// change their addresses they become ever more.
    fn candidates(map: &Map, known: &[Address]) -> Vec<Address> {
        let mut candidates: Vec<Address> = Vec::new();
        let primaries = map.nodes().into_iter().map(|node| node.address.clone());
        for address in primaries.chain(known.iter().cloned()) {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        candidates
    }

    /// The map, from the first node that is not behind. A node that was asked before is asked first, and each
    /// other one when those before it are of no use, or slow.
    async fn query(
        &mut self,
        candidates: &[Address],
        time_limit: Duration,
    ) -> Result<Slots, Failed> {
        let mut failed = Failed::default();
        if let Some((address, connection, task)) = self.current.take() {
            match reported(&connection, &address, time_limit).await {
                Ok((epoch, slots)) if epoch >= self.epoch => {
                    self.current = Some((address, connection, task));
                    return Ok(self.believe(epoch, slots));
                }
                Ok(_) => {}
                Err(error) => failed.add(address.to_string().into(), error),
            }
        }
        let mut behind: Option<Told> = None;
        let mut problems = BTreeMap::new();
        let (mut next, mut asked) = (0, Asked(Vec::new()));
        loop {
            if let Some(address) = candidates.get(next) {
                let settings = self.settings.at(address, Expected::Nothing);
                asked
                    .0
                    .push((next, Box::pin(report_of(settings, address, time_limit))));
                next += 1;
            } else if asked.0.is_empty() {
                break;
            }
            let slow = async {
                match next < candidates.len() {
                    true => tokio::time::sleep(SLOW).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                (nth, answer) = asked.next() => match answer {
                    Ok(found) if found.epoch >= self.epoch => {
                        self.current = Some((candidates[nth].clone(), found.connection, found.task));
                        return Ok(self.believe(found.epoch, found.slots));
                    }
                    Ok(found) => {
                        if behind.as_ref().is_none_or(|best| best.epoch < found.epoch) {
                            behind = Some(found);
                        }
                    }
                    Err(error) => _ = problems.insert(nth, error),
                },
                () = slow => {}
            }
        }
        let all_answered = problems.is_empty();
        for (nth, problem) in problems {
            failed.add(candidates[nth].to_string().into(), problem);
        }
        match behind {
            // Nobody has seen more: the cluster was made anew.
            Some(found) if all_answered || self.is_behind_for_long() => {
                Ok(self.believe(found.epoch, found.slots))
            }
            // A former primary that has just gone on says for a moment that all is well.
            Some(_) => Err(failed),
            None => {
                self.behind_since = None;
                Err(failed)
            }
        }
    }

    fn believe(&mut self, epoch: u64, slots: Slots) -> Slots {
        self.epoch = epoch;
        self.behind_since = None;
        slots
    }

    fn is_behind_for_long(&mut self) -> bool {
        let since = self.behind_since.get_or_insert_with(Instant::now);
        since.elapsed() >= MADE_ANEW
    }
}

/// Those who are asked at the same time, by their numbers.
struct Asked<'a>(Vec<(usize, BoxFuture<'a, Result<Told, ConnectionError>>)>);

impl Asked<'_> {
    /// The first answer of any.
    async fn next(&mut self) -> (usize, Result<Told, ConnectionError>) {
        std::future::poll_fn(|context| {
            for at in 0..self.0.len() {
                let (nth, asking) = &mut self.0[at];
                if let Poll::Ready(answer) = asking.as_mut().poll(context) {
                    let nth = *nth;
                    drop(self.0.swap_remove(at));
                    return Poll::Ready((nth, answer));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Asks a node over a connection of its own.
async fn report_of(
    settings: Settings,
    address: &Address,
    time_limit: Duration,
) -> Result<Told, ConnectionError> {
    let asking = async {
        let (connection, task) = Connection::open(&settings, Role::Commands).await?;
        let (epoch, slots) = reported(&connection, address, time_limit).await?;
        Ok(Told {
            epoch,
            slots,
            connection,
            task,
        })
    };
    let asked = tokio::time::timeout(time_limit, asking).await;
    asked.unwrap_or_else(|_| Err(silent()))
}

fn silent() -> ConnectionError {
    ConnectionError::Timeout("no answer".to_owned())
}

/// What a node that sees its cluster working says of it.
async fn reported(
    connection: &Connection,
    asked: &Address,
    time_limit: Duration,
) -> Result<(u64, Slots), ConnectionError> {
    let refused = |text: &str| ConnectionError::Refused(text.to_owned());
    let epoch = probe::works(connection, time_limit).await?;
    let epoch = epoch.ok_or_else(|| refused("CLUSTERDOWN The cluster is down"))?;
    let reply = connection.command("CLUSTER", &[Arg::Fixed("SLOTS")], time_limit);
    let slots = read(&reply.await?, asked);
    let slots = slots.ok_or_else(|| refused("ERR the node does not tell its slots"))?;
    Ok((epoch, slots))
}

/// Reads `CLUSTER SLOTS`: for each range the first slot, the last, the primary, and its replicas. A server
/// is its host, its port, and more.
fn read(reply: &Reply, asked: &Address) -> Option<Slots> {
    let Reply::List(ranges) = reply else {
        return None;
    };
    let range = |range: &Reply| {
        let Reply::List(range) = range else {
            return None;
        };
        let [
            Reply::Number(first),
            Reply::Number(last),
            Reply::List(primary),
            ..,
        ] = &range[..]
        else {
            return None;
        };
        let [host, Reply::Number(port), ..] = &primary[..] else {
            return None;
        };
        let host = match host {
            Reply::Text(host) => host,
            Reply::Nil => "",
            _ => return None,
        };
        let slots = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
        Some((
            slots,
            Address::named(host, u16::try_from(*port).ok()?, asked),
        ))
    };
    ranges.iter().map(range).collect()
}

/// Between two questions when nothing happens.
const BETWEEN: Duration = Duration::from_secs(5);

/// Between two questions when much does.
const APART: Duration = Duration::from_millis(50);

/// The next node is asked beside one that has not answered by then.
const SLOW: Duration = Duration::from_millis(100);

/// So long those who answer tell a lower epoch before it is believed, if others do not answer.
const MADE_ANEW: Duration = Duration::from_secs(5);

/// A node that has not answered by then is left alone.
const TIME_LIMIT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read_with_hosts_that_are_missing() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let server = |host: Reply, port| {
            Reply::List(vec![
                host,
                Reply::Number(port),
                text("id"),
                Reply::List(Vec::new()),
            ])
        };
        let range = |first, last, primary| {
            let replica = server(text("10.0.0.9"), 7009);
            Reply::List(vec![
                Reply::Number(first),
                Reply::Number(last),
                primary,
                replica,
            ])
        };
        let reply = Reply::List(vec![
            range(0, 5460, server(text("10.0.0.2"), 7001)),
            range(5461, 5461, server(Reply::Nil, 7002)),
            range(5462, 16383, server(text(""), 7003)),
        ]);
        let asked = Address::new("10.0.0.1", 7000);
        let found: Vec<_> = read(&reply, &asked)
            .expect("it is right")
            .into_iter()
            .map(|(slots, address)| (slots, address.to_string()))
            .collect();
        assert_eq!(
            found,
            [
                (0..=5460, "10.0.0.2:7001".to_owned()),
                (5461..=5461, "10.0.0.1:7002".to_owned()),
                (5462..=16383, "10.0.0.1:7003".to_owned()),
            ]
        );
        for wrong in [
            Reply::Nil,
            Reply::List(vec![Reply::Nil]),
            Reply::List(vec![range(0, 70_000, server(text("h"), 1))]),
            Reply::List(vec![range(0, 1, server(Reply::Number(1), 1))]),
        ] {
            assert_eq!(read(&wrong, &asked), None, "{wrong:?}");
        }
    }
}
