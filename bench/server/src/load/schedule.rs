//! When requests are due.

/// How the requests of a connection follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// As in the paper: due at each tick of the connection's timer, sent once the reply before has come. A period of 0:
    /// as fast as the replies come.
    Closed {
        /// The timer's period.
        period_ns: u64,
    },
    /// Due at random moments (Poisson), and sent then, whatever has become of those before.
    Open {
        /// The mean time between two of a connection.
        interval_ns: u64,
    },
}

/// The moments of one connection, one after the other.
#[derive(Debug)]
pub struct Schedule {
    arrival: Arrival,
    state: u64,
}

impl Schedule {
    /// That of the connection of this number.
    pub fn new(arrival: Arrival, seed: u64, number: u64) -> Self {
        // Neighbouring numbers have unlike states.
        let state = (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        let mut schedule = Schedule { arrival, state };
        for _ in 0..4 {
            schedule.random();
        }
        schedule
    }

    /// A number of at least 0 and below 1.
    fn random(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From the beginning to the first moment.
    pub fn first_ns(&mut self) -> u64 {
        match self.arrival {
            // Timers tick at different times.
            Arrival::Closed { period_ns } => (self.random() * period_ns as f64) as u64,
            Arrival::Open { .. } => self.next_ns(),
        }
    }

    /// From one moment to the next.
    pub fn next_ns(&mut self) -> u64 {
        match self.arrival {
            Arrival::Closed { period_ns } => period_ns,
            Arrival::Open { interval_ns } => (-(1.0 - self.random()).ln() * interval_ns as f64) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_their_mean_and_connections_differ() {
        let arrival = Arrival::Open { interval_ns: 1000 };
        let mean = |number| {
            let mut schedule = Schedule::new(arrival, 5, number);
            (0..10_000).map(|_| schedule.next_ns()).sum::<u64>() / 10_000
        };
        assert!((970..1030).contains(&mean(0)), "{}", mean(0));
        assert_ne!(mean(1), mean(2));
    }
}
