//! Programs from seeds.

use fastrand::Rng;
use redisson_lock::LockKind;
use redisson_lock_core::HandOff;
use redisson_lock_test::sim::{Latency, NODES};

use super::program::{
    ClientPlan, Fault, Inspect, JavaReads, JavaStep, KeysMoved, LOCKS, Program, Round, SINGLE,
    Step, TaskPlan, Until, Verb, kind_of,
};

impl Program {
    /// The program of a seed.
    pub fn roll(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let kind = rng.u8(0..100);
        let (healthy, fenced, rights) = (kind < 20, kind < 80, kind >= 92);
        let command_ms = [200, 400, 900][rng.usize(0..3)];
        let latency = latency(rng, healthy, command_ms);
        let clients: Vec<_> = (0..rng.usize(1..=3))
            .map(|_| ClientPlan {
                fence: fenced || rights || rng.bool(),
                may_kill: fenced || rights || rng.u8(0..4) == 0,
                connections: if rng.u8(0..8) == 0 { 2 } else { 1 },
                prefix: rng.bool(),
                // On, bounded to one in a row, and off.
                passes: [HandOff::default().passes, 1, 0][(seed % 3) as usize],
            })
            .collect();
        let mut closes = rng.u8(0..5) == 0;
        let owners: Vec<(usize, i64)> = (0..rng.usize(2..=5))
            .map(|nth| {
                let shared = nth > 0 && rng.u8(0..5) == 0;
                (
                    rng.usize(0..clients.len()),
                    if shared { -1 } else { -1 - nth as i64 },
                )
            })
            .collect();
        let rounds = (0..rng.usize(1..=2))
            .map(|_| Round {
                tasks: owners
                    .iter()
                    .map(|&(client, owner)| TaskPlan {
                        client,
                        owner,
                        steps: (0..rng.usize(1..=7)).map(|_| Step::roll(rng)).collect(),
                    })
                    .collect(),
                java: (0..rng.usize(0..=3)).map(|_| JavaStep::roll(rng)).collect(),
                faults: if healthy {
                    Vec::new()
                } else {
                    (0..rng.usize(0..=4))
                        .map(|_| {
                            (
                                rng.u64(0..4_000),
                                Fault::roll(rng, clients.len(), command_ms, rights, &mut closes),
                            )
                        })
                        .collect()
                },
            })
            .collect();
        // With a long lease a lost wake-up shows: it costs as long as the lease.
        let watchdog_ms = if rng.bool() { 3_000 } else { 30_000 };
        let late_percent = [0, 0, 5, 30][rng.usize(0..4)];
        Self {
            seed,
            kinds: [LockKind::Plain; LOCKS.len()],
            fair_wait_ms: 300_000,
            reports: seed.is_multiple_of(2),
            java_reads: JavaReads::like_ours(watchdog_ms),
            several: false,
            cluster: false,
            latency,
            late_percent,
            watchdog_ms,
            command_ms,
            clients,
            rounds,
        }
    }
}

impl Program {
    /// The same with locks of another kind. The JVM knows no string locks.
    pub fn of_kind(self, kind: LockKind) -> Self {
        self.of_kinds([kind; LOCKS.len()])
    }

    pub(super) fn of_kinds(mut self, kinds: [LockKind; LOCKS.len()]) -> Self {
        self.kinds = kinds;
        for round in &mut self.rounds {
            round
                .java
                .retain(|step| kind_of(kinds, step.lock()) != LockKind::String);
        }
        self
    }

    /// The program of a seed, in a cluster whose slots move.
    pub fn roll_in_cluster(seed: u64) -> Self {
        let mut program = Self::roll(seed);
        program.cluster = true;
        let mut rng = Rng::with_seed(!seed);
        // Of some nothing but slots moves, under everybody's feet.
        let smooth = program.rounds.iter().all(|round| round.faults.is_empty());
        if smooth {
            program.command_ms = 900;
        }
        for round in &mut program.rounds {
            let moved = (0..rng.usize(0..=3)).map(|_| match smooth {
                true => (rng.u64(0..1_500), Fault::smooth(&mut rng)),
                false => (rng.u64(0..5_000), Fault::of_cluster(&mut rng)),
            });
            round.faults.extend(moved);
        }
        program
    }
}

fn latency(rng: &mut Rng, healthy: bool, command_ms: u64) -> Latency {
    if healthy {
        Latency {
            least: 0,
            usual: [0, 2, 20][rng.usize(0..3)],
            seldom: 30,
            seldom_percent: 10,
        }
    } else {
        let seldom_percent = rng.u8(0..12);
        Latency {
            least: 0,
            usual: [0, 1, 5, 60][rng.usize(0..4)],
            seldom: rng.u64(1..2 * command_ms),
            seldom_percent,
        }
    }
}

impl Step {
    fn roll(rng: &mut Rng) -> Self {
        let lock = usize::from(rng.u8(0..4) == 0);
        let which = rng.usize(0..3);
        match rng.u8(0..100) {
            0..38 => Self::Take {
                lock,
                verb: match rng.u8(0..10) {
                    0..5 => Verb::Lock,
                    5 | 6 => Verb::Try,
                    7 => Verb::TryFor(rng.u64(0..1_500)),
                    8 => Verb::TryUntil(rng.u64(0..1_500)),
                    _ => Verb::Run(rng.u64(0..1_200)),
                },
                lease_ms: (rng.u8(0..4) == 0).then(|| [10, 300, 2_000, 8_000][rng.usize(0..4)]),
                max_hold_ms: (rng.u8(0..12) == 0).then(|| [500, 2_500, 6_000][rng.usize(0..3)]),
                until: Until::roll(rng),
            },
            38..42 => Self::Both {
                lock,
                inside_ms: rng.u64(0..20),
            },
            42..62 => Self::Unlock {
                which,
                until: Until::roll(rng),
            },
            62..70 => Self::Drop { which },
            70..72 => Self::Detach { which },
            72..75 => Self::UnlockDetached {
                lock,
                until: Until::roll(rng),
            },
            75..78 => Self::Extend {
                which,
                lease_ms: [20, 1_000, 9_000][rng.usize(0..3)],
                until: Until::roll(rng),
            },
            78..81 => Self::Inspect {
                lock,
                what: Inspect::ALL[rng.usize(0..Inspect::ALL.len())],
                until: Until::roll(rng),
            },
            81..83 => Self::Force {
                lock,
                until: Until::roll(rng),
            },
            83 | 84 => Self::Poll {
                lock,
                times: rng.u32(1..60),
            },
            _ => Self::Sleep {
                ms: [0, 1, 5, 40, 500, 1_300, 4_000, 9_000][rng.usize(0..8)],
            },
        }
    }
}

impl Until {
    fn roll(rng: &mut Rng) -> Self {
        match rng.u8(0..20) {
            0 | 1 => Self::Polls(rng.u32(0..12)),
            2 => Self::Ms([0, 1, 3][rng.usize(0..3)]),
            3 => Self::Ms(rng.u64(0..1_500)),
            _ => Self::Done,
        }
    }
}

impl JavaStep {
    fn roll(rng: &mut Rng) -> Self {
        let lock = usize::from(rng.u8(0..4) == 0);
        let wait_ms = rng.u64(0..1_500);
        if rng.u8(0..10) == 0 {
            return Self::Force { wait_ms, lock };
        }
        let hold_ms = [0, 3, 50, 900, 4_000, 9_000][rng.usize(0..6)];
        Self::Hold {
            wait_ms,
            lock,
            depth: rng.u32(1..=3),
            hold_ms,
            dies: rng.u8(0..8) == 0,
        }
    }
}

impl Fault {
    fn roll(
        rng: &mut Rng,
        clients: usize,
        command_ms: u64,
        rights: bool,
        closes: &mut bool,
    ) -> Self {
        let client = rng.usize(0..clients);
        if rights && rng.bool() {
            const RIGHTS: [&str; 6] = [
                "evalsha",
                "eval",
                "publish",
                "subscribe",
                "client|kill",
                "client|info",
            ];
            return Self::Deny {
                client,
                right: RIGHTS[rng.usize(0..RIGHTS.len())],
                ms: rng.u64(1..3_000),
            };
        }
        if std::mem::take(closes) {
            if rng.u8(0..3) == 0 {
                return Self::EndRuntime { client };
            }
            return Self::Close {
                client,
                grace_ms: [0, 100, 3_000][rng.usize(0..3)],
            };
        }
        Self::roll_common(rng, client, command_ms)
    }

    /// Everybody hears immediately that a slot has moved.
    fn smooth(rng: &mut Rng) -> Self {
        Self::Move {
            lock: rng.usize(0..SINGLE),
            to: rng.usize(0..NODES),
            ms: [0, 30, 1_500, 4_000][rng.usize(0..4)],
            keys: KeysMoved::All,
            gossip_ms: 0,
            new_epoch: rng.bool(),
        }
    }

    /// The keys of a slot move, some of them before the others.
    pub(super) fn half_moved(rng: &mut Rng) -> Self {
        Self::Move {
            lock: rng.usize(0..SINGLE),
            to: rng.usize(0..NODES),
            ms: [30, 200, 1_500, 4_000][rng.usize(0..4)],
            keys: KeysMoved::Half(rng.u64(..)),
            gossip_ms: [0, 0, 50, 900][rng.usize(0..4)],
            new_epoch: rng.bool(),
        }
    }

    fn of_cluster(rng: &mut Rng) -> Self {
        match rng.u8(0..10) {
            0..5 => Self::Move {
                lock: rng.usize(0..SINGLE),
                to: rng.usize(0..NODES),
                ms: [0, 0, 30, 1_500][rng.usize(0..4)],
                keys: KeysMoved::Half(rng.u64(..)),
                gossip_ms: [0, 0, 50, 900][rng.usize(0..4)],
                new_epoch: rng.bool(),
            },
            5..9 => Self::Promote {
                from: rng.usize(0..2),
                lag_ms: [0, 20, 700, 3_000][rng.usize(0..4)],
                stale_ms: [0, 0, 150, 1_800][rng.usize(0..4)],
            },
            _ => Self::NotServed {
                ms: [0, 60, 900, 3_000][rng.usize(0..4)],
            },
        }
    }

    fn roll_common(rng: &mut Rng, client: usize, command_ms: u64) -> Self {
        match rng.u8(0..100) {
            0..30 => Self::Cut {
                client,
                reported: rng.u8(0..5) > 1,
            },
            30..45 => Self::Cut {
                client,
                reported: rng.u8(0..5) > 1,
            },
            45..50 => Self::Down {
                ms: [10, 500, 2_500, 5_000][rng.usize(0..4)],
            },
            50..52 => Self::Freeze {
                ms: [100, 500, 2_500][rng.usize(0..3)],
            },
            52..57 => Self::Restart,
            57..61 => Self::Wipe,
            61..66 => Self::FlushScripts,
            66..75 => {
                let usual = rng.u64(0..command_ms);
                let latency = Latency {
                    least: 0,
                    usual,
                    seldom: 2 * command_ms,
                    seldom_percent: 30,
                };
                Self::Slow {
                    ms: rng.u64(1..3_000),
                    latency,
                }
            }
            75..81 => Self::StandStill {
                ms: [5, 80, 1_100, 3_500][rng.usize(0..4)],
            },
            81..95 => Self::Deafen {
                client,
                ms: rng.u64(1..3_000),
            },
            95..98 => Self::Suspend {
                client,
                ms: [command_ms / 2, command_ms * 2 + 50, command_ms * 4][rng.usize(0..3)],
            },
            _ => Self::Noise {
                lock: rng.usize(0..SINGLE),
            },
        }
    }
}
