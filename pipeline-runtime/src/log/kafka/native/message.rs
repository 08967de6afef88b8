//! A message as it was fetched, freed when it is dropped.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use rdkafka::bindings as c;
use rdkafka::types::RDKafkaErrorCode;

use super::text;
use crate::log::Header;

pub struct Message(NonNull<c::rd_kafka_message_t>);

// SAFETY: a message is owned by whoever holds it; the library lets it be freed on any thread.
unsafe impl Send for Message {}

impl Message {
    /// # Safety
    /// A live message that nobody else frees; or null.
    pub unsafe fn own(message: *mut c::rd_kafka_message_t) -> Option<Self> {
        NonNull::new(message).map(Self)
    }

    fn fields(&self) -> &c::rd_kafka_message_t {
        // SAFETY: alive until `drop`.
        unsafe { self.0.as_ref() }
    }

    /// What the message says instead of being a record: the end of the partition was reached, or an error.
    pub fn error(&self) -> Option<RDKafkaErrorCode> {
        let err = self.fields().err;
        (err != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| err.into())
    }

    pub fn error_text(&self) -> String {
        // SAFETY: alive; the text lives as long as the message.
        unsafe { text(c::rd_kafka_message_errstr(self.0.as_ptr())) }
    }

    pub fn offset(&self) -> i64 {
        self.fields().offset
    }

    pub fn timestamp_ms(&self) -> Option<i64> {
        let mut kind = c::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: alive; the out-pointer is good.
        let timestamp = unsafe { c::rd_kafka_message_timestamp(self.0.as_ptr(), &mut kind) };
        (kind != c::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE).then_some(timestamp)
    }

    pub fn key(&self) -> Option<&[u8]> {
        let fields = self.fields();
        // SAFETY: the library gives pointer and length of bytes that live as long as the message.
        unsafe { bytes(fields.key, fields.key_len) }
    }

    /// `None`: a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        let fields = self.fields();
        // SAFETY: as for the key.
        unsafe { bytes(fields.payload, fields.len) }
    }

    /// Appends the message's headers.
    pub fn headers(&self, into: &mut Vec<Header>) {
        let mut headers = ptr::null_mut();
        // SAFETY: alive; the out-pointer is good. The headers are the message's own.
        let err = unsafe { c::rd_kafka_message_headers(self.0.as_ptr(), &mut headers) };
        if err != c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            return;
        }
        for index in 0.. {
            let (mut name, mut value, mut length): (*const c_char, *const c_void, usize) =
                (ptr::null(), ptr::null(), 0);
            // SAFETY: headers and out-pointers are good; an index behind the last header gives an error.
            let header = unsafe {
                let err = c::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut length);
                (err == c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| Header {
                    name: text(name),
                    value: bytes(value.cast_mut(), length).unwrap_or(&[]).to_vec(),
                })
            };
            match header {
                Some(header) => into.push(header),
                None => return,
            }
        }
    }
}

/// # Safety
/// Null, or `length` bytes that live as long as `'a`.
unsafe fn bytes<'a>(start: *mut c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller's.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start.cast::<u8>().cast_const(), length) })
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: ours, and dropped once.
        unsafe { c::rd_kafka_message_destroy(self.0.as_ptr()) };
    }
}
