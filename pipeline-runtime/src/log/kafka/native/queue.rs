//! A partition's own queue of messages, and the signal that it has some.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as c;

use super::message::Message;
use super::{Client, NativeError, c_string};

/// Lets a lane sleep until one of its queues has something.
#[derive(Default)]
pub struct Waker {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl Waker {
    pub fn wake(&self) {
        *self.signalled.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Returns at once when there was a signal since the last wait, else with the next one or after `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let signalled = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(signalled, timeout, |signalled| !*signalled);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// What a queue's signal points to: the library calls it on its own threads.
pub struct Signal {
    filled: AtomicBool,
    waker: Arc<Waker>,
}

impl Signal {
    pub fn new(waker: &Arc<Waker>) -> Arc<Self> {
        Arc::new(Self { filled: AtomicBool::new(false), waker: Arc::clone(waker) })
    }

    pub fn set(&self) {
        self.filled.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// True when the queue was empty and is so no longer, since the last call.
    pub fn take(&self) -> bool {
        self.filled.swap(false, Ordering::Acquire)
    }
}

/// Called when an empty queue gets something, with the queue locked: it must not use the queue.
unsafe extern "C" fn on_filled(_: *mut c::rd_kafka_t, signal: *mut c_void) {
    // SAFETY: the pointer is that of a `Signal` in an `Arc` which is held until the callback was taken away.
    if let Some(signal) = unsafe { signal.cast::<Signal>().as_ref() } {
        signal.set();
    }
}

/// Has `queue` call `signal`; null takes it away. The library holds the queue's lock in both, so that no call runs on
/// after that.
///
/// # Safety
/// A live queue; the signal outlives the registration.
pub unsafe fn register(queue: NonNull<c::rd_kafka_queue_t>, signal: Option<&Arc<Signal>>) {
    // SAFETY: the caller's.
    unsafe {
        match signal {
            Some(signal) => c::rd_kafka_queue_cb_event_enable(
                queue.as_ptr(),
                Some(on_filled),
                Arc::as_ptr(signal).cast_mut().cast::<c_void>(),
            ),
            None => c::rd_kafka_queue_cb_event_enable(queue.as_ptr(), None, ptr::null_mut()),
        }
    }
}

/// The messages of one partition, apart from those of all others: left alone it costs nothing and keeps what was
/// fetched ahead, where a pause would throw that away.
pub struct PartitionQueue {
    queue: NonNull<c::rd_kafka_queue_t>,
    signal: Arc<Signal>,
    /// Pointers on their way out of the library.
    scratch: Vec<*mut c::rd_kafka_message_t>,
    /// Signals come when the queue turns from empty to filled, so one that was not drained must be looked at again.
    more: bool,
    _client: Arc<Client>,
}

// SAFETY: the queue may be used from any thread; the scratch is empty between calls.
unsafe impl Send for PartitionQueue {}

impl PartitionQueue {
    /// Takes a partition's messages out of the client's common queue. To be called before the partition is assigned,
    /// so that none gets there.
    pub fn take(client: &Arc<Client>, topic: &str, partition: i32, waker: &Arc<Waker>) -> Option<Self> {
        let name = c_string(topic);
        let signal = Signal::new(waker);
        // SAFETY: client and name are alive; the handle is ours until it is destroyed in `drop`.
        let queue = unsafe {
            let queue = NonNull::new(c::rd_kafka_queue_get_partition(client.rk(), name.as_ptr(), partition))?;
            c::rd_kafka_queue_forward(queue.as_ptr(), ptr::null_mut());
            register(queue, Some(&signal));
            queue
        };
        Some(Self { queue, signal, scratch: Vec::new(), more: true, _client: Arc::clone(client) })
    }

    /// Takes up to `max` messages without waiting. Returns how many.
    pub fn fetch(&mut self, max: usize, into: &mut VecDeque<Message>) -> usize {
        if !(self.signal.take() || self.more) {
            return 0;
        }
        self.scratch.reserve(max);
        // SAFETY: the queue is alive; the library writes at most `max` pointers into the reserved room and returns how
        // many (or -1, which leaves none). Each message is ours from then on.
        let count = unsafe {
            let count = c::rd_kafka_consume_batch_queue(self.queue.as_ptr(), 0, self.scratch.as_mut_ptr(), max);
            self.scratch.set_len(usize::try_from(count).unwrap_or(0));
            self.scratch.len()
        };
        self.more = count == max;
        // SAFETY: each pointer is a live message that nobody else has.
        into.extend(self.scratch.drain(..).filter_map(|m| unsafe { Message::own(m) }));
        count
    }
}

impl Drop for PartitionQueue {
    fn drop(&mut self) {
        // SAFETY: alive until here. Taking the callback away first means that `signal` is not called any more.
        unsafe {
            register(self.queue, None);
            c::rd_kafka_queue_destroy(self.queue.as_ptr());
        }
    }
}

impl Client {
    /// Begins to fetch the listed partitions at the listed offsets, besides those that are fetched already.
    pub fn assign(&self, partitions: &TopicPartitionList) -> Result<(), NativeError> {
        // SAFETY: both are alive; the list is copied.
        NativeError::take(unsafe { c::rd_kafka_incremental_assign(self.rk(), partitions.ptr()) })
    }

    /// Stops to fetch the listed partitions.
    pub fn unassign(&self, partitions: &TopicPartitionList) -> Result<(), NativeError> {
        // SAFETY: both are alive; the list is copied.
        NativeError::take(unsafe { c::rd_kafka_incremental_unassign(self.rk(), partitions.ptr()) })
    }

    /// The high watermark of a partition that is fetched, by the last answer. No request is made.
    pub fn high_watermark(&self, topic: &str, partition: i32) -> Option<i64> {
        let (name, mut low, mut high) = (c_string(topic), 0, 0);
        // SAFETY: client and name are alive; the library writes both numbers or neither.
        let code = unsafe {
            c::rd_kafka_get_watermark_offsets(self.rk(), name.as_ptr(), partition, &raw mut low, &raw mut high)
        };
        (code == c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    /// The offset behind everything that was taken out of a partition's queue, markers of transactions included.
    /// `None`: nothing was. `reached` is the last end that the queue told of: the library takes its notice for a record at
    /// that offset, which comes later if there is one. So one above it says nothing.
    pub fn position(&self, topic: &str, partition: i32, reached: Option<i64>) -> Option<i64> {
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition(topic, partition);
        // SAFETY: both are alive; the list's offsets are written in place.
        unsafe { c::rd_kafka_position(self.rk(), list.ptr()) };
        let position = list.elements().first().and_then(|e| e.offset().to_raw()).filter(|offset| *offset >= 0);
        position.filter(|position| reached.is_none_or(|end| *position != end + 1))
    }
}
