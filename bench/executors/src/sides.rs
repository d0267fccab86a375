//! The executors under measurement, behind one interface.
//!
//! Coroutines are `Send` on every side, so that one text of each experiment serves all; spawning is by the free
//! function that a user of the executor would call, or through a thread-local where it has none.

use std::cell::RefCell;
use std::future::Future;
use std::sync::LazyLock;

/// One executor.
pub trait Side {
    /// The name in the table.
    const NAME: &'static str;
    /// How many threads run coroutines.
    const THREADS: usize;
    /// Whether it runs on this system.
    fn is_available() -> bool {
        true
    }
    /// Gives the end of a coroutine.
    type Handle: Future<Output = ()>;

    /// Runs `main` as a coroutine of the executor until it has ended.
    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64;
    /// Spawns a coroutine, inside of `run`.
    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle;
    /// Spawns a coroutine that nobody awaits.
    fn detach<F: Future<Output = ()> + Send + 'static>(body: F);
    /// Gives way to the others.
    fn yield_now() -> impl Future<Output = ()> + Send;
}

/// Ours, one thread.
pub struct HeddleLocal;

impl Side for HeddleLocal {
    const NAME: &'static str = "heddle local";
    const THREADS: usize = 1;
    type Handle = Unwrapped<heddle_coroutine::LocalJoinHandle<()>>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        heddle_coroutine::block_on(main)
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        Unwrapped(heddle_coroutine::spawn_local(body))
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        heddle_coroutine::spawn_local(body).detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        heddle_coroutine::yield_now()
    }
}

/// Ours, two threads.
pub struct HeddlePool;

static HEDDLE_POOL: LazyLock<heddle_coroutine::Executor> =
    LazyLock::new(|| heddle_coroutine::Executor::new(2));

impl Side for HeddlePool {
    const NAME: &'static str = "heddle pool";
    const THREADS: usize = 2;
    type Handle = Unwrapped<heddle_coroutine::JoinHandle<()>>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        HEDDLE_POOL.block_on(async { heddle_coroutine::spawn(main).await.expect("no panic") })
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        Unwrapped(heddle_coroutine::spawn(body))
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        heddle_coroutine::spawn(body).detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        heddle_coroutine::yield_now()
    }
}

/// tokio's current-thread runtime.
pub struct TokioCurrent;

impl Side for TokioCurrent {
    const NAME: &'static str = "tokio current-thread";
    const THREADS: usize = 1;
    type Handle = Unwrapped<tokio::task::JoinHandle<()>>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async { tokio::spawn(main).await.expect("no panic") })
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        Unwrapped(tokio::spawn(body))
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        drop(tokio::spawn(body));
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }
}

/// tokio's set of local coroutines.
pub struct TokioLocalSet;

impl Side for TokioLocalSet {
    const NAME: &'static str = "tokio LocalSet";
    const THREADS: usize = 1;
    type Handle = Unwrapped<tokio::task::JoinHandle<()>>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let set = tokio::task::LocalSet::new();
        set.block_on(&runtime, async { tokio::task::spawn_local(main).await.expect("no panic") })
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        Unwrapped(tokio::task::spawn_local(body))
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        drop(tokio::task::spawn_local(body));
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }
}

/// tokio's multi-thread runtime with two workers.
pub struct TokioMulti;

static TOKIO_MULTI: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime")
});

impl Side for TokioMulti {
    const NAME: &'static str = "tokio multi-thread";
    const THREADS: usize = 2;
    type Handle = Unwrapped<tokio::task::JoinHandle<()>>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        TOKIO_MULTI.block_on(async { tokio::spawn(main).await.expect("no panic") })
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        Unwrapped(tokio::spawn(body))
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        drop(tokio::spawn(body));
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }
}

thread_local! {
    static ASYNC_LOCAL: &'static async_executor::StaticLocalExecutor =
        Box::leak(Box::new(async_executor::StaticLocalExecutor::new()));
    static POOL: RefCell<Option<futures::executor::LocalSpawner>> = const { RefCell::new(None) };
}

/// async-executor's local executor.
pub struct AsyncLocal;

impl Side for AsyncLocal {
    const NAME: &'static str = "async-executor local";
    const THREADS: usize = 1;
    type Handle = async_executor::Task<()>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        let executor = ASYNC_LOCAL.with(|executor| *executor);
        let main = executor.spawn(main);
        futures_lite::future::block_on(executor.run(main))
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        ASYNC_LOCAL.with(|executor| executor.spawn(body))
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        ASYNC_LOCAL.with(|executor| executor.spawn(body)).detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        futures_lite::future::yield_now()
    }
}

/// async-executor's static executor, run by the calling thread and another.
pub struct AsyncStatic;

static ASYNC_STATIC: async_executor::StaticExecutor = async_executor::StaticExecutor::new();
static ASYNC_WORKER: LazyLock<()> = LazyLock::new(|| {
    std::thread::spawn(|| futures_lite::future::block_on(ASYNC_STATIC.run(std::future::pending::<()>())));
});

impl Side for AsyncStatic {
    const NAME: &'static str = "async-executor static";
    const THREADS: usize = 2;
    type Handle = async_executor::Task<()>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        LazyLock::force(&ASYNC_WORKER);
        let main = ASYNC_STATIC.spawn(main);
        futures_lite::future::block_on(ASYNC_STATIC.run(main))
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        ASYNC_STATIC.spawn(body)
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        ASYNC_STATIC.spawn(body).detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        futures_lite::future::yield_now()
    }
}

/// futures' pool of one thread.
pub struct LocalPool;

impl Side for LocalPool {
    const NAME: &'static str = "futures LocalPool";
    const THREADS: usize = 1;
    type Handle = futures::future::RemoteHandle<()>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        use futures::task::LocalSpawnExt;
        let mut pool = futures::executor::LocalPool::new();
        POOL.set(Some(pool.spawner()));
        let main = pool.spawner().spawn_local_with_handle(main).expect("a live pool");
        let output = pool.run_until(main);
        POOL.set(None);
        output
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        use futures::task::LocalSpawnExt;
        POOL.with_borrow(|pool| pool.as_ref().expect("inside").spawn_local_with_handle(body))
            .expect("a live pool")
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        use futures::task::LocalSpawnExt;
        POOL.with_borrow(|pool| pool.as_ref().expect("inside").spawn_local(body)).expect("a live pool");
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        futures_lite::future::yield_now()
    }
}

/// smol's global executor, whose threads `SMOL_THREADS` counts: see [`SMOL_THREADS`].
pub struct Smol;

/// The variable that has to be 2 before the first coroutine is spawned.
pub const SMOL_THREADS: &str = "SMOL_THREADS";

impl Side for Smol {
    const NAME: &'static str = "smol";
    const THREADS: usize = 2;
    type Handle = smol::Task<()>;

    fn run<F: Future<Output = f64> + Send + 'static>(main: F) -> f64 {
        smol::block_on(smol::spawn(main))
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(body: F) -> Self::Handle {
        smol::spawn(body)
    }

    fn detach<F: Future<Output = ()> + Send + 'static>(body: F) {
        smol::spawn(body).detach();
    }

    fn yield_now() -> impl Future<Output = ()> + Send {
        futures_lite::future::yield_now()
    }
}

/// A handle whose error, a panic or an abort, the experiments never see.
pub struct Unwrapped<H>(H);

impl<E: std::fmt::Debug, H: Future<Output = Result<(), E>> + Unpin> Future for Unwrapped<H> {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        std::pin::Pin::new(&mut self.0).poll(cx).map(|output| output.expect("no panic"))
    }
}
