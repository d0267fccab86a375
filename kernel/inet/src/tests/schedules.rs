//! The engine under schedules drawn at random: shuttle switches threads at each of its locks, so every order in which
//! calls, packets, workers and timers take them can come up. A circle of locks is found as a deadlock, whatever it
//! takes to run into it; what is left at the end shows what got lost.

use super::*;
use crate::udp::{SendOptions, UdpSocket};
use shuttle::thread;

/// Schedules of each model, by chance and by priorities with changes at chosen points (PCT).
const BY_CHANCE: usize = 2000;
const BY_PRIORITY: usize = 1000;
const CHANGES: usize = 3;
const PORT: u16 = 80;
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn check(model: fn()) {
    shuttle::check_random(model, BY_CHANCE);
    shuttle::check_pct(model, BY_PRIORITY, CHANGES);
}

type Socket = Arc<TcpSocket<Simulated>>;

fn socket(engine: &Arc<Engine<Simulated>>) -> Socket {
    TcpSocket::new(engine, false, 0).unwrap()
}

fn listening(engine: &Arc<Engine<Simulated>>, address: IpAddr, backlog: usize) -> Socket {
    let listener = socket(engine);
    listener.bind(Endpoint::new(address, PORT)).unwrap();
    listener.listen(backlog).unwrap();
    listener
}

fn put(socket: &Socket) {
    let _ = socket.send(3, |free| Ok::<_, ()>(free.len()));
}

fn take(socket: &Socket) {
    let _ = socket.receive(Reading::First, |bytes| Ok::<_, ()>(bytes.len()));
}

/// Accepts `count` times at most, and closes what it accepts.
fn accept(listener: &Socket, count: usize) {
    for _ in 0..count {
        if let Ok(server) = listener.accept() {
            take(&server);
            put(&server);
            server.close();
        }
    }
}

/// Lets the time pass that ports stay taken: then nothing is left of any connection, and the ports are free.
fn assert_nothing_left(engine: &Arc<Engine<Simulated>>) {
    NOW_NS.set(NOW_NS.get() + 200_000 * MILLISECOND_NS);
    while engine.tick().is_some_and(|next_ns| next_ns <= NOW_NS.get()) {}
    assert_eq!(engine.tcp_sockets().map(|all| all.len()), Ok(0));
    let again = socket(engine);
    again.bind(Endpoint::new(LOCAL, PORT)).expect("the listener's port is free");
    again.close();
}

fn one_machine() -> Arc<Engine<Simulated>> {
    NOW_NS.set(1_000_000_000);
    Engine::new(()).unwrap()
}

/// Two clients, one of which dissolves its connections, a queue that is too short for them, and the timer.
#[test]
fn clients_a_listener_and_the_timer() {
    check(|| {
        let engine = one_machine();
        let listener = listening(&engine, LOCAL, 0);
        let to = listener.local();
        let mut threads = Vec::new();
        for dissolves in [false, true] {
            let engine = engine.clone();
            threads.push(thread::spawn(move || {
                let client = socket(&engine);
                for _ in 0..2 {
                    let _ = client.connect(to, true);
                    put(&client);
                    take(&client);
                    if dissolves {
                        client.disconnect();
                    }
                }
                client.close();
            }));
        }
        let ticking = engine.clone();
        threads.push(thread::spawn(move || {
            NOW_NS.set(NOW_NS.get() + 300 * MILLISECOND_NS);
            let _ = ticking.tick();
            let _ = ticking.tcp_sockets();
            ticking.reclaim();
        }));
        accept(&listener, 3);
        listener.close();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_nothing_left(&engine);
    });
}

/// Ends that wait to be accepted and bytes that wait for more, while all of it ends.
#[test]
fn corks_and_late_accepts() {
    check(|| {
        let engine = one_machine();
        let listener = listening(&engine, LOCAL, 4);
        listener.options.defer_accept.store(1, Ordering::Relaxed);
        let to = listener.local();
        let client = socket(&engine);
        client.options.cork.store(1, Ordering::Relaxed);
        client.connect(to, true).unwrap();
        let (sender, ticking) = (client.clone(), engine.clone());
        let sending = thread::spawn(move || {
            put(&sender);
            sender.options.cork.store(0, Ordering::Relaxed);
            sender.cork_changed();
            sender.close();
        });
        let timer = thread::spawn(move || {
            for _ in 0..2 {
                NOW_NS.set(NOW_NS.get() + 600 * MILLISECOND_NS);
                let _ = ticking.tick();
            }
        });
        accept(&listener, 2);
        sending.join().unwrap();
        timer.join().unwrap();
        accept(&listener, 2);
        listener.close();
        assert_nothing_left(&engine);
    });
}

/// Two threads on one end, and two on the other, of which one closes it.
#[test]
fn both_ends_of_a_connection() {
    check(|| {
        let engine = one_machine();
        let listener = listening(&engine, LOCAL, 1);
        let client = socket(&engine);
        client.connect(listener.local(), true).unwrap();
        let server = listener.accept().unwrap();
        listener.close();
        let threads = [client.clone(), server.clone()].map(|end| {
            thread::spawn(move || {
                put(&end);
                take(&end);
                let _ = end.shut_down(false, true);
                let _ = end.readiness();
                let _ = end.listing();
            })
        });
        put(&server);
        client.disconnect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        server.close();
        client.close();
        assert_nothing_left(&engine);
    });
}

/// Carries what each engine has sent to the other.
fn carry(net: &[(Arc<Engine<Simulated>>, &'static Wire); 2]) -> bool {
    let mut was_busy = false;
    for from in 0..2 {
        loop {
            let next = net[from].1.sent.lock().unwrap().pop_front();
            let Some((frame, _)) = next else { break };
            was_busy = true;
            net[1 - from].0.receive(&frame, false);
        }
    }
    was_busy
}

/// Connections over the link: a client, a server, the demultiplexers, the workers and the timers of both machines.
#[test]
fn a_connection_over_the_link() {
    check(|| {
        let net = Net::new(1, Faults::default());
        let hosts = net.hosts.each_ref().map(|host| (host.engine.clone(), host.link));
        let listener = listening(&hosts[1].0, V4[1], 1);
        let client = socket(&hosts[0].0);
        let _ = client.connect(Endpoint::new(V4[1], PORT), true);
        let (demultiplexed, caller) = (hosts.clone(), client.clone());
        let carrying = thread::spawn(move || {
            for _ in 0..6 {
                carry(&demultiplexed);
                thread::yield_now();
            }
        });
        let working = thread::spawn(|| {
            for _ in 0..6 {
                work();
                thread::yield_now();
            }
        });
        let calling = thread::spawn(move || {
            for _ in 0..3 {
                put(&caller);
                take(&caller);
                let _ = caller.readiness();
            }
            caller.close();
        });
        for _ in 0..3 {
            accept(&listener, 1);
            for (engine, _) in &hosts {
                let _ = engine.tick();
                let _ = engine.tcp_sockets();
            }
        }
        listener.close();
        calling.join().unwrap();
        carrying.join().unwrap();
        working.join().unwrap();
        // Whatever is still under way comes to its end.
        for _ in 0..400 {
            if !carry(&hosts) && !work() {
                NOW_NS.set(NOW_NS.get() + 1_000 * MILLISECOND_NS);
                for (engine, _) in &hosts {
                    let _ = engine.tick();
                }
            }
        }
        hosts.iter().for_each(|(engine, _)| assert_nothing_left(engine));
    });
}

/// Datagrams to sockets that are bound, connected and closed meanwhile, with an error for one that finds nobody.
#[test]
fn datagrams_and_their_ports() {
    check(|| {
        let engine = one_machine();
        let to = Endpoint::new(LOCAL, PORT);
        let threads = [true, false].map(|receives| {
            let engine = engine.clone();
            thread::spawn(move || {
                let socket = UdpSocket::new(&engine, false, 0).unwrap();
                if receives && socket.bind(to).is_ok() {
                    let _ = socket.receive(false, true, |datagram| Ok::<_, ()>(datagram.payload().len()));
                } else {
                    let _ = socket.connect(Some(to));
                    for _ in 0..2 {
                        let _ = socket.send(3, &SendOptions::default(), |free| Ok::<_, ()>(free.len()));
                    }
                    let _ = socket.connect(None);
                }
                socket.close();
            })
        });
        let _ = engine.udp_sockets();
        engine.reclaim();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(engine.udp_sockets().map(|all| all.len()), Ok(0));
    });
}
