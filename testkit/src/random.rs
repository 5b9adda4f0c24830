//! Pseudorandom numbers, reproducible from their seed.

/// Marsaglia's xorshift64 ("Xorshift RNGs", 2003).
pub struct Random(u64);

impl Random {
    /// The sequence of a seed, which must not be 0: from 0 nothing else follows.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        usize::try_from(self.number() % limit).unwrap_or(0)
    }
}
