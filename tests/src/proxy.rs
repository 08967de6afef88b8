//! A proxy between workers and brokers that breaks the conversation at one place.
//!
//! It knows as much of Kafka's protocol as it needs: every frame begins with its length, a request goes on with its API
//! key, its version and its correlation id, an answer with that id.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_kafka_harness::Kafka;

/// The request that ends a transaction.
const END_TXN: i16 = 26;
/// How often a delayed answer looks whether the delay is over.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// No frame of a test is larger.
const FRAME_BYTES_MAX: usize = 256 << 20;

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The broker never hears the request.
    Request,
    /// The broker has answered, and nobody hears it.
    Answer,
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Faults {
    stop: AtomicBool,
    delay_ms: AtomicU64,
    interrupted: AtomicBool,
    /// Where, and how many requests to end a transaction are still to be cut.
    cut: Mutex<Option<(Cut, usize)>>,
    /// Called when the next one comes, before it is passed on.
    hook: Mutex<Option<Hook>>,
    cut_count: AtomicUsize,
    answered_count: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A running proxy: one port for each broker of [`millrace_kafka_harness::Options::proxied_listener`].
pub struct Proxy {
    faults: Arc<Faults>,
    addresses: Vec<String>,
}

impl Proxy {
    pub fn start(kafka: &Kafka) -> anyhow::Result<Self> {
        let ids = 1..=kafka.brokers() as u32;
        let proxy = Self { faults: Arc::default(), addresses: ids.clone().map(|id| kafka.proxy(id)).collect() };
        for id in ids {
            let (address, broker) = (kafka.proxy(id), kafka.proxied(id));
            let listener = TcpListener::bind(&address).with_context(|| format!("listen on {address}"))?;
            let faults = Arc::clone(&proxy.faults);
            proxy.faults.spawn(move || faults.accept(&listener, &broker));
        }
        Ok(proxy)
    }

    /// What a worker behind the proxy is told.
    pub fn servers(&self) -> String {
        self.addresses.join(",")
    }

    /// Answers come so much later.
    pub fn delay(&self, delay: Duration) {
        self.faults.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Cuts the next `times` requests that end a transaction.
    pub fn cut_end_txn(&self, cut: Cut, times: usize) {
        *lock(&self.faults.cut) = Some((cut, times));
    }

    /// How many were cut.
    pub fn cut_count(&self) -> usize {
        self.faults.cut_count.load(Ordering::Relaxed)
    }

    /// How many were answered.
    pub fn answered_count(&self) -> usize {
        self.faults.answered_count.load(Ordering::Relaxed)
    }

    /// Has something done between the next request to end a transaction and the broker.
    pub fn before_end_txn(&self, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.faults.hook) = Some(Box::new(hook));
    }

    /// Nobody reaches a broker until [`Proxy::mend`].
    pub fn interrupt(&self) {
        self.faults.interrupted.store(true, Ordering::Relaxed);
        self.faults.cut_all();
    }

    pub fn mend(&self) {
        self.faults.interrupted.store(false, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.faults.stop.store(true, Ordering::Relaxed);
        self.delay(Duration::ZERO);
        // Wakes the listeners.
        self.addresses.iter().for_each(|address| drop(TcpStream::connect(address)));
        loop {
            self.faults.cut_all();
            let Some(thread) = lock(&self.faults.threads).pop() else { return };
            // A thread that panicked has printed why.
            drop(thread.join());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of the answers to requests that end a transaction, by correlation id.
type Awaited = Arc<Mutex<BTreeMap<[u8; 4], Option<Cut>>>>;

impl Faults {
    #[expect(clippy::disallowed_methods, reason = "joined when the proxy is dropped")]
    fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        lock(&self.threads).push(std::thread::spawn(work));
    }

    fn cut_all(&self) {
        for connection in lock(&self.connections).drain(..) {
            // It may have ended by itself.
            drop(connection.shutdown(Shutdown::Both));
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, broker: &str) {
        for client in listener.incoming() {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let interrupted = self.interrupted.load(Ordering::Relaxed);
            // A broker that is not there is to the client as if it had closed the connection.
            if let (Ok(client), false) = (client, interrupted)
                && let Ok(server) = TcpStream::connect(broker)
            {
                drop(self.connect(client, server));
            }
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        lock(&self.connections).extend([client.try_clone()?, server.try_clone()?]);
        let awaited = Awaited::default();
        let (requests, told) = ((client.try_clone()?, server.try_clone()?), Arc::clone(&awaited));
        let faults = Arc::clone(self);
        self.spawn(move || pump(requests.0, requests.1, |frame| faults.request(frame, &told)));
        let faults = Arc::clone(self);
        self.spawn(move || pump(server, client, |frame| faults.answer(frame, &awaited)));
        Ok(())
    }

    /// False: the connection is cut before the request is passed on.
    fn request(&self, frame: &[u8], awaited: &Awaited) -> bool {
        let (Some(key), Some(correlation)) = (bytes(frame, 0), bytes::<4>(frame, 4)) else { return false };
        if i16::from_be_bytes(key) != END_TXN {
            return true;
        }
        if let Some(hook) = lock(&self.hook).take() {
            hook();
        }
        let cut = match &mut *lock(&self.cut) {
            Some((cut, left)) if *left > 0 => {
                *left -= 1;
                Some(*cut)
            }
            _ => None,
        };
        if cut == Some(Cut::Request) {
            self.cut_count.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        lock(awaited).insert(correlation, cut);
        true
    }

    /// False: the connection is cut before the answer is passed on.
    fn answer(&self, frame: &[u8], awaited: &Awaited) -> bool {
        let came = Instant::now();
        while came.elapsed() < Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)) {
            std::thread::park_timeout(LOOK_EVERY);
        }
        let Some(correlation) = bytes(frame, 0) else { return false };
        match lock(awaited).remove(&correlation) {
            None => true,
            Some(None) => {
                self.answered_count.fetch_add(1, Ordering::Relaxed);
                true
            }
            Some(Some(_)) => {
                self.cut_count.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }
}

/// Bytes of a frame behind its length.
fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(4 + at..4 + at + N)?.try_into().ok()
}

/// Passes frames on until an end is closed, or one may not pass; then both are closed.
fn pump(mut from: TcpStream, mut to: TcpStream, may_pass: impl Fn(&[u8]) -> bool) {
    while let Ok(frame) = read_frame(&mut from)
        && may_pass(&frame)
        && to.write_all(&frame).is_ok()
    {}
    // The other side may be gone already.
    drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
}

fn read_frame(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let size = u32::from_be_bytes(length) as usize;
    if size > FRAME_BYTES_MAX {
        return Err(io::Error::other("this is not Kafka's protocol"));
    }
    let mut frame = vec![0; 4 + size];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}
