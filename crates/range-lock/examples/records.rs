//! Records in a file that threads change and read at the same time, each under a lock on the bytes it touches:
//! transfers between neighbours lock two records, a sum over everything locks the file, shared, and sees no transfer
//! half done.
//!
//! `cargo run --release --example records [THREADS]`

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    store::run()
}

#[cfg(not(unix))]
fn main() {
    println!("this example reads and writes at places in a file as Unix does");
}

#[cfg(unix)]
mod store {
    use heddle_range_lock::RangeLock;
    use std::error::Error;
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::thread;
    use std::time::Duration;

    const RECORD: u64 = 64;
    const RECORDS: u64 = 256;
    const EACH: u64 = 1000;
    const TRANSFERS: u64 = 20_000;

    type RecordError = Box<dyn Error + Send + Sync>;

    struct RecordFile {
        file: File,
        /// Ranges of bytes; each names what it is held for.
        lock: RangeLock<u64, &'static str>,
    }

    impl RecordFile {
        fn get(&self, record: u64) -> Result<u64, RecordError> {
            let mut bytes = [0; 8];
            self.file.read_exact_at(&mut bytes, record * RECORD)?;
            Ok(u64::from_le_bytes(bytes))
        }

        fn set(&self, record: u64, value: u64) -> Result<(), RecordError> {
            Ok(self.file.write_all_at(&value.to_le_bytes(), record * RECORD)?)
        }

        /// Takes one from a record, if there is one, and gives it to the next.
        fn transfer(&self, from: u64) -> Result<(), RecordError> {
            let bytes = from * RECORD..(from + 2) * RECORD;
            let _held = self.lock.request_as(bytes, "a transfer").lock()?;
            let value = self.get(from)?;
            if value > 0 {
                self.set(from, value - 1)?;
                self.set(from + 1, self.get(from + 1)? + 1)?;
            }
            Ok(())
        }

        /// The sum of all records at one moment.
        fn sum(&self) -> Result<u64, RecordError> {
            let _held = self.lock.request_as(.., "a sum").shared().lock()?;
            (0..RECORDS).try_fold(0, |sum, record| Ok(sum + self.get(record)?))
        }

        /// Tells who is in the way of a request for everything, for want of patience.
        fn try_to_cut(&self) -> Result<&'static str, RecordError> {
            match self.lock.request_as(.., "a cut").lock_timeout(Duration::from_micros(1)) {
                Ok(_) => Ok("nobody"),
                Err(_) => Ok(self.lock.first_conflict(..)?.map_or("somebody", |holder| holder.payload)),
            }
        }
    }

    pub fn run() -> Result<(), Box<dyn Error>> {
        let threads = std::env::args().nth(1).map_or(Ok(4), |number| number.parse::<u64>())?;
        let path = std::env::temp_dir().join(format!("heddle-range-lock-records-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        let store = RecordFile { file, lock: RangeLock::new() };
        for record in 0..RECORDS {
            store.set(record, EACH).map_err(|error| error as Box<dyn Error>)?;
        }
        let sums = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|worker| {
                    let store = &store;
                    scope.spawn(move || {
                        for turn in 0..TRANSFERS {
                            store.transfer((turn * 7 + worker * 31) % (RECORDS - 1))?;
                        }
                        Ok::<_, RecordError>(())
                    })
                })
                .collect();
            let sums = (0..20).map(|_| store.sum()).collect::<Result<Vec<_>, _>>()?;
            println!("in the way of a cut: {}", store.try_to_cut()?);
            for worker in workers {
                worker.join().map_err(|_| "a worker has panicked")??;
            }
            Ok::<_, RecordError>(sums)
        });
        let sums = sums.map_err(|error| error as Box<dyn Error>)?;
        assert!(sums.iter().all(|sum| *sum == RECORDS * EACH), "a sum saw half of a transfer: {sums:?}");
        println!(
            "{} sums over {RECORDS} records beside {threads} threads' transfers, all {}",
            sums.len(),
            sums[0]
        );
        Ok(())
    }
}
