//! Connecting: a place in the demultiplexer, and the way to a listener of this machine.

use alloc::sync::Arc;
use core::net::IpAddr;

use crate::address::{Endpoint, Tuple, loopback_like};
use crate::engine::{Entry, LastNumbers};
use crate::error::{InetError, InetResult};
use crate::options::Options;
use crate::platform::{Platform, Readiness, Waiters, random_u64};
use crate::ports::ephemeral;
use crate::tcp::fused::{Pair, Side};
use crate::tcp::fused_link::FusedLink;
use crate::tcp::held::Deferred;
use crate::tcp::{Connecting, Phase, State, TcpSocket};

impl<P: Platform> TcpSocket<P> {
    /// Starts or goes on with a connection to `target`. A call that finds it started and unanswered would have to wait.
    ///
    /// # Errors
    /// [`InetError::InProgress`] (the first call of one that must not wait), [`InetError::AlreadyConnecting`] (a
    /// further one), [`InetError::WouldBlock`] (one that may wait), [`InetError::IsConnected`], and why there is no
    /// connection.
    pub fn connect(self: &Arc<Self>, target: Endpoint, may_wait: bool) -> InetResult<()> {
        let mut state = self.state.lock();
        match state.connecting {
            Connecting::Done => return Err(InetError::IsConnected),
            Connecting::Dead => return Err(InetError::Invalid),
            Connecting::Started => return self.connected(&mut state, may_wait, false),
            Connecting::No => {}
        }
        if !matches!(state.phase, Phase::Closed) {
            return Err(InetError::IsConnected);
        }
        let target = Endpoint {
            address: if target.address.is_unspecified() {
                loopback_like(target.address)
            } else {
                target.address
            },
            ..target
        };
        // Nobody answers for a group or for everyone on a link.
        if target.address.is_multicast() || self.engine.is_broadcast(target.address) {
            return Err(InetError::NetworkUnreachable);
        }
        let bound = state.bound.and_then(|bound| bound.address);
        let source = self.engine.source_for(target.address, bound)?;
        if self.is_v6 && target.address.is_ipv4() && Options::is_on(&self.options.only_v6) {
            return Err(InetError::NetworkUnreachable);
        }
        let is_local = self.engine.is_local(target.address);
        let local = self.register(&mut state, source, target, is_local)?;
        state.local = Some(local);
        state.remote = Some(target);
        state.connecting = Connecting::Started;
        self.engine.counters.tcp.active_opens.count();
        if !is_local {
            if let Err(error) = self.start_wire(&mut state, local, target) {
                self.unregister(&mut state, None, None);
                state.remote = None;
                state.connecting = Connecting::No;
                return Err(error);
            }
            return self.connected(&mut state, may_wait, true);
        }
        state.phase = Phase::Knocking;
        drop(state);
        self.knock();
        let mut state = self.state.lock();
        self.connected(&mut state, may_wait, true)
    }

    /// Whether `connect` says so whatever the address: it has been called, or the socket listens.
    #[must_use]
    pub fn has_started(&self) -> bool {
        let state = self.state.lock();
        state.connecting != Connecting::No || !matches!(state.phase, Phase::Closed)
    }

    /// How a connection that was started stands.
    fn connected(self: &Arc<Self>, state: &mut State<P>, may_wait: bool, is_first: bool) -> InetResult<()> {
        if is_first && !may_wait {
            return Err(InetError::InProgress);
        }
        let waits = match &state.phase {
            Phase::Wire(wire) => wire.is_connecting(),
            Phase::Knocking => true,
            _ => false,
        };
        match &state.phase {
            _ if waits && may_wait => Err(InetError::WouldBlock),
            _ if waits => Err(InetError::AlreadyConnecting),
            Phase::Fused => {
                if let Some(link) = self.fused().filter(|link| link.is_reset()) {
                    let error = link.take_error();
                    link.dissolve();
                    self.give_up(state);
                    return Err(error.unwrap_or(InetError::ConnectionAborted));
                }
                state.connecting = Connecting::Done;
                Ok(())
            }
            Phase::Wire(wire) if wire.is_connected() || state.error.is_none() => {
                state.connecting = Connecting::Done;
                Ok(())
            }
            _ => {
                self.give_up(state);
                Err(state.error.take().unwrap_or(InetError::ConnectionAborted))
            }
        }
    }

    /// Takes a place in the demultiplexer, with the port that is bound or one of its own.
    fn register(
        self: &Arc<Self>,
        state: &mut State<P>,
        source: IpAddr,
        target: Endpoint,
        is_local: bool,
    ) -> InetResult<Endpoint> {
        let is_reusable = Options::is_on(&self.options.reuse_address);
        let mut connections = self.engine.connections.lock();
        connections.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        let mut ports = self.engine.tcp_ports.lock();
        let place = |port: u16| {
            let local = Endpoint { address: source, port };
            let tuple = Tuple::new(local, target);
            connections.get(&tuple).is_none_or(Entry::is_recyclable).then_some((tuple, local))
        };
        let (tuple, local) = match state.bound {
            Some(bound) => place(bound.port).ok_or(InetError::AddressNotAvailable)?,
            None => {
                let random = random_u64::<P>() as u32;
                let mut free =
                    ephemeral(self.engine.settings.ports(), random).filter(|&port| !ports.is_bound(port));
                let found = free.find_map(place).ok_or(InetError::AddressNotAvailable)?;
                ports.hold(found.1.port, is_reusable)?;
                found
            }
        };
        let entry = if is_local { Entry::Local(Arc::downgrade(self)) } else { Entry::Wire(self.clone()) };
        if let Some(Entry::TimeWait { is_reusable, .. }) = connections.insert(tuple, entry) {
            ports.release(local.port, is_reusable);
        }
        state.registered = Some((tuple, is_reusable));
        Ok(local)
    }

    /// Gives the place in the demultiplexer up; with `waits_ns` a record keeps the port so long.
    pub(super) fn unregister(
        &self,
        state: &mut State<P>,
        waits_ns: Option<u64>,
        numbers: Option<LastNumbers>,
    ) {
        let Some((tuple, is_reusable)) = state.registered.take() else { return };
        // A port that `bind` took is given up with the binding.
        let holds = state.bound.is_none();
        self.engine.leave(
            self,
            tuple,
            holds.then_some(is_reusable),
            waits_ns,
            Options::is_on(&self.options.reuse_address),
            numbers,
        );
    }

    /// Looks for the listener of a connection that was started, and becomes one end of it.
    pub(super) fn knock(self: &Arc<Self>) {
        let (local, remote) = {
            let state = self.state.lock();
            match (&state.phase, state.local, state.remote) {
                (Phase::Knocking, Some(local), Some(remote)) => (local, remote),
                _ => return,
            }
        };
        let result = self.fuse(local, remote);
        if let Err(error) = result {
            if error == InetError::WouldBlock {
                return;
            }
            let tcp = &self.engine.counters.tcp;
            tcp.attempts_failed.count();
            if error == InetError::ConnectionRefused {
                tcp.resets_sent.count();
                self.engine.counters.segment::<P>(!local.address.is_ipv4(), 0);
            }
            let mut state = self.state.lock();
            state.phase = Phase::Closed;
            state.error = Some(error);
            state.reading_ended = true;
            self.unregister(&mut state, None, None);
            if state.bound.is_some_and(|bound| !bound.is_named) {
                self.unbind(&mut state);
            }
        }
        self.waiters.wake(Readiness::all());
    }

    /// See [`TcpSocket::knock`]. [`InetError::WouldBlock`]: the listener has no room, and will call again.
    fn fuse(self: &Arc<Self>, local: Endpoint, remote: Endpoint) -> InetResult<()> {
        if local == remote {
            return self.fuse_with_itself();
        }
        let found = self.engine.tcp_ports.lock().find(remote, local, true);
        let target = found.ok_or(InetError::ConnectionRefused)?;
        let recycled = self.fused.get().and_then(|first| first.recycled(Side::Client, Side::Client));
        let (accepted, made) = match recycled {
            Some(link) => {
                let waiters = link.pair.server_waiters().clone();
                (Self::with_waiters(&self.engine, target.is_v6, target.user, waiters)?, None)
            }
            None => {
                let accepted = Self::new(&self.engine, target.is_v6, target.user)?;
                let pair = Pair::<P>::new(&self.waiters, &accepted.waiters)?;
                (accepted, Some(FusedLink::of_client(pair)))
            }
        };
        accepted.options.copy_from(&target.options);
        accepted.waiters.follow(&target.waiters);
        let Some(own_link) = made.as_ref().or(recycled) else { return Err(InetError::NoBuffers) };
        let theirs = FusedLink::of_server(own_link.pair.clone());
        let is_v6 = !local.address.is_ipv4();
        own_link.pair.set_v6(is_v6);
        own_link.set_buffers(&self.options);
        theirs.set_buffers(&accepted.options);
        // Nobody else knows the accepted socket yet.
        {
            let mut state = accepted.state.lock();
            state.local = Some(remote);
            state.remote = Some(local);
            state.phase = Phase::Fused;
            state.connecting = Connecting::Done;
        }
        accepted.attach(theirs)?;
        let mut state = target.state.lock();
        let Phase::Listening(listener) = &mut state.phase else { return Err(InetError::ConnectionRefused) };
        if listener.is_full() {
            listener.queue(self)?;
            self.engine.counters.tcp.queue_full.count();
            return Err(InetError::WouldBlock);
        }
        listener.reserve()?;
        accepted.register_accepted(local, remote)?;
        {
            let mut own = self.state.lock();
            if !matches!(own.phase, Phase::Knocking) {
                drop(own);
                drop(state);
                accepted.close();
                return Ok(());
            }
            if own.reading_ended {
                own_link.shut_down(&self.engine.counters, true, false);
            }
            match (made, recycled) {
                (Some(made), _) => self.attach(made)?,
                (None, Some(recycled)) => recycled.revive(),
                (None, None) => {}
            }
            own.phase = Phase::Fused;
        }
        self.cork_changed();
        accepted.cork_changed();
        let pair = self.fused().map(|link| link.pair.clone());
        let waits = Options::get(&target.options.defer_accept);
        let accepted = match pair.filter(|_| waits > 0) {
            None => Some(accepted),
            Some(pair) => {
                let until_ns = P::now_ns() + u64::from(waits) * 1_000_000_000;
                let deferred = Deferred { listener: Arc::downgrade(&target), accepted, until_ns };
                pair.defer(&self.engine, deferred).map(|deferred| deferred.accepted)
            }
        };
        self.engine.counters.opened::<P>(is_v6);
        let Some(accepted) = accepted else { return Ok(()) };
        listener.push(accepted);
        drop(state);
        target.waiters.wake(Readiness::IN);
        Ok(())
    }

    /// Becomes both ends of a connection: two requests that cross each other make one, also if both are its own.
    fn fuse_with_itself(&self) -> InetResult<()> {
        let recycled = self.fused.get().and_then(|first| first.recycled(Side::Client, Side::Server));
        let made = match recycled {
            Some(_) => None,
            None => Some(FusedLink::to_itself(Pair::<P>::new(&self.waiters, &self.waiters)?)),
        };
        let Some(link) = made.as_ref().or(recycled) else { return Err(InetError::NoBuffers) };
        link.set_buffers(&self.options);
        let mut own = self.state.lock();
        if own.reading_ended {
            link.shut_down(&self.engine.counters, true, false);
        }
        if matches!(own.phase, Phase::Knocking) {
            match (made, recycled) {
                (Some(made), _) => self.attach(made)?,
                (None, Some(recycled)) => recycled.revive(),
                (None, None) => {}
            }
            own.phase = Phase::Fused;
        }
        Ok(())
    }

    /// Takes a connection within the machine as the current one: with the state's lock held, or while nobody else
    /// knows the socket.
    fn attach(&self, link: FusedLink<P>) -> InetResult<()> {
        if let Some(first) = self.fused.get() {
            return first.append(link);
        }
        self.fused.call_once(|| link);
        Ok(())
    }

    fn register_accepted(self: &Arc<Self>, client: Endpoint, server: Endpoint) -> InetResult<()> {
        let is_reusable = Options::is_on(&self.options.reuse_address);
        let tuple = Tuple::new(server, client);
        let mut connections = self.engine.connections.lock();
        connections.try_reserve(1).map_err(|_| InetError::NoMemory)?;
        let mut ports = self.engine.tcp_ports.lock();
        ports.hold(server.port, is_reusable)?;
        if let Some(Entry::TimeWait { is_reusable, .. }) =
            connections.insert(tuple, Entry::Local(Arc::downgrade(self)))
        {
            ports.release(server.port, is_reusable);
        }
        drop(ports);
        drop(connections);
        self.state.lock().registered = Some((tuple, is_reusable));
        Ok(())
    }
}
