//! Executors of a thread each, which stand on io_uring.

use crate::rows::Here;
use crate::sides::Side;
use std::future::Future;

/// monoio, by io_uring where this system has it.
pub struct Monoio;

impl Side for Monoio {
    const NAME: &'static str = "monoio";
    const THREADS: usize = 1;
    type Handle = monoio::task::JoinHandle<()>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        let mut runtime = monoio::RuntimeBuilder::<monoio::FusionDriver>::new().build().expect("a runtime");
        runtime.block_on(async { monoio::spawn(main).await })
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        monoio::spawn(body)
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        drop(monoio::spawn(body));
    }

    // A task that wakes itself is the next to run there, so that others run only while one waits for another.
    fn yield_now() -> impl Future<Output = ()> + Send {
        Here(monoio::spawn(async {}))
    }
}

/// glommio, which needs io_uring.
pub struct Glommio;

impl Side for Glommio {
    const NAME: &'static str = "glommio";
    const THREADS: usize = 1;
    type Handle = glommio::Task<()>;

    fn is_available() -> bool {
        glommio::LocalExecutorBuilder::default().make().is_ok()
    }

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        let executor = glommio::LocalExecutorBuilder::default().make().expect("an executor");
        executor.run(async { glommio::spawn_local(main).await })
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        glommio::spawn_local(body)
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        glommio::spawn_local(body).detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        futures_lite::future::yield_now()
    }
}
