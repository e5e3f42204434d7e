//! What is under way for an owner, for the explorer: it counts which inputs come while what is.

use super::LockCore;
use super::ids::ThreadId;
use super::op::{Acquire, Job, Op, Release};
use super::owner_state::OwnerState;
use super::queue::Order;

/// One owner as the explorer tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerView {
    pub op: UnderWay,
    pub held: bool,
    /// It has a guard whose hold was lost, and holds nothing.
    pub lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderWay {
    Nothing,
    Acquire {
        order: Order,
        target: u32,
        then_release: bool,
    },
    Release {
        direct: u32,
        /// A job is at it; whether it has nothing left to do.
        in_sync: Option<bool>,
        raced: bool,
    },
}

impl LockCore {
    pub fn view(&self, owner: ThreadId) -> OwnerView {
        let own = self.owners.get(&owner);
        OwnerView {
            op: own.map_or(UnderWay::Nothing, OwnerState::under_way),
            held: own.is_some_and(|own| own.tenure.is_held()),
            lost: own.is_some_and(|own| own.tenure.lost().is_some()),
        }
    }
}

impl OwnerState {
    /// Every field is named: a new one is to be told apart too, or left out on purpose.
    fn under_way(&self) -> UnderWay {
        match &self.op {
            Op::Idle => UnderWay::Nothing,
            Op::Acquire(Acquire {
                id: _,
                order,
                target,
                lease: _,
                losses: _,
                then_release,
            }) => UnderWay::Acquire {
                order: *order,
                target: *target,
                then_release: *then_release,
            },
            Op::Release(Release {
                id: _,
                direct,
                job,
                raced,
                freeing_sends: _,
            }) => UnderWay::Release {
                direct: *direct,
                in_sync: job.as_ref().map(
                    |Job {
                         in_sync,
                         give_up_at: _,
                     }| *in_sync,
                ),
                raced: *raced,
            },
        }
    }
}
