//! Numbers that vary the workloads: fast, seeded, the same for every side.

/// xorshift64*: one multiplication a number, good enough to spread ranges.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; different seeds give different sequences.
    pub fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// YCSB's Zipfian generator (Gray et al.), items 0 (the most frequent) to `items - 1`, spread over the key space by
/// a hash as YCSB's scrambled variant does.
#[derive(Clone, Debug)]
pub struct Zipf {
    items: u64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// The distribution over `items` items with skew `theta` (YCSB: 0.99).
    pub fn new(items: u64, theta: f64) -> Self {
        let zeta_of = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(theta)).sum::<f64>();
        let zeta = zeta_of(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta_of(2.min(items)) / zeta);
        Self { items, theta, zeta, alpha: 1.0 / (1.0 - theta), eta }
    }

    /// The next item.
    pub fn item(&self, random: &mut Random) -> u64 {
        self.rank(random).wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.items
    }

    /// The rank of the next item: 0 is the most frequent one.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        };
        rank.min(self.items - 1)
    }
}
