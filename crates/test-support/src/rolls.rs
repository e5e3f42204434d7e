//! Numbers that look random, for calls of scripts in any order.

/// The same numbers in each run from one seed, which is not 0.
pub struct Rolls(pub u64);

impl Rolls {
    /// A number from 0 to below the bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("small")
    }

    /// One of these.
    pub fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}
