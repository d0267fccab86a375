//! Nothing but its tests: libraries of others, by the versions that Cargo.lock has, over heddle-coroutine. In a package
//! of its own, because the crates that are published need none of them.
