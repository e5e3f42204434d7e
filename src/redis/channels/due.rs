//! What the task of the channels has to do, and when.

use tokio::time::Instant;

use super::registry::{Channel, ChannelPart, ChannelRequest, Channels, LINGER, LaneId, Phase};

impl Channels {
    /// Waits until there is something to do. Cancel safe.
    pub(in crate::redis) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// When there is something to do, if nothing changes before.
    pub(in crate::redis) fn next_due(&self) -> Option<Instant> {
        let mut listed = self.listed.lock();
        listed.looks_at = listed.idle.first().map(|(since, _)| *since + LINGER);
        let elsewhere = listed
            .elsewhere
            .first()
            .map(|(since, _)| *since + self.elsewhere_max());
        let due = [listed.looks_at, listed.again_at, elsewhere];
        due.into_iter().flatten().min()
    }

    /// The channels that are to be asked for now.
    pub(in crate::redis) fn due(&self) -> Vec<ChannelRequest> {
        let now = Instant::now();
        let mut listed = self.listed.lock();
        let is_due = std::mem::take(&mut listed.is_due);
        // Who joins asks for itself.
        if !is_due && listed.again_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        listed.again_at = None;
        let wanted: Vec<_> = listed.wanted.iter().cloned().collect();
        let mut due = Vec::new();
        for part in wanted {
            let phase = listed.get(&part).map(|channel| channel.phase);
            match phase {
                Some(Phase::Wanted(Some(at))) if at > now => {
                    listed.again_at = Some(listed.again_at.map_or(at, |known| known.min(at)));
                }
                _ => due.extend(listed.request(&part)),
            }
        }
        due
    }

    /// The channels that have had no listener for a while, each with its connection. They are [`left`](Self::left) next.
    pub(in crate::redis) fn unused(&self) -> Vec<(ChannelPart, LaneId)> {
        let now = Instant::now();
        let mut listed = self.listed.lock();
        let idle = listed.idle.iter();
        let idle = idle.take_while(|(since, _)| *since + LINGER <= now);
        let unused: Vec<_> = idle.map(|(_, part)| part.clone()).collect();
        let mut leaving = Vec::new();
        for part in unused {
            match listed.get(&part).and_then(Channel::leaves) {
                Some(lane) => leaving.push((part, lane)),
                None => _ = listed.remove(&part),
            }
        }
        leaving
    }

    /// The channels whose server elsewhere has not confirmed them in time, each with its connection. From now on they are
    /// wanted where their locks are; those that were asked for are [`left`](Self::left) next.
    pub(in crate::redis) fn not_confirmed_elsewhere(&self) -> Vec<(ChannelPart, LaneId)> {
        let now = Instant::now();
        let mut listed = self.listed.lock();
        let waiting = listed.elsewhere.iter();
        let waiting = waiting.take_while(|(since, _)| *since + self.elsewhere_max() <= now);
        let late: Vec<_> = waiting.cloned().collect();
        let mut leaving = Vec::new();
        for (since, part) in late {
            listed.elsewhere.remove(&(since, part.clone()));
            if let Some(channel) = listed.get(&part) {
                (channel.is_elsewhere, channel.elsewhere_since) = (false, None);
                leaving.extend(channel.leaves().map(|lane| (part, lane)));
                listed.is_due = true;
            }
        }
        leaving
    }

    /// The channels that do not stay where they are subscribed to, each with its connection. They are [`left`](Self::left)
    /// next.
    pub(in crate::redis) fn moved(
        &self,
        stays: impl Fn(&ChannelRequest, LaneId) -> bool,
    ) -> Vec<(ChannelPart, LaneId)> {
        let mut listed = self.listed.lock();
        // Those that found no connection to the server of before may find one now.
        listed.is_due |= !listed.wanted.is_empty();
        let subscribed = listed
            .each()
            .filter_map(|(part, it)| Some((part, it.phase.lane()?)));
        let subscribed: Vec<_> = subscribed.collect();
        let mut leaving = Vec::new();
        for (part, lane) in subscribed {
            let stays = listed
                .request(&part)
                .is_some_and(|request| stays(&request, lane));
            if !stays && let Some(channel) = listed.get(&part) {
                channel.is_elsewhere = self.is_elsewhere(part.delivery);
                channel.leaves();
                leaving.push((part, lane));
            }
        }
        leaving
    }

    /// The subscription to a channel was ended. Returns it if it is wanted again.
    pub(in crate::redis) fn left(&self, part: &ChannelPart) -> Option<ChannelRequest> {
        let mut listed = self.listed.lock();
        listed.forgotten(part, None);
        listed.request(part)
    }
}
