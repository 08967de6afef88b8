//! How the memory that a process may use is divided.
//!
//! | part | for |
//! | --- | --- |
//! | a quarter | blocks and rows of states that are cached |
//! | a quarter | write buffers of states |
//! | an eighth | records that were fetched and wait to be read: most while a worker catches up |
//! | an eighth | rows that wait in joins; more of them wait in the state only |
//! | the rest | epochs, clients, RocksDB's indexes, what the allocator keeps |

/// Where the kernel says what bounds a container, in its second and in its first way.
const LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
/// No machine has so much: it stands for no limit.
const NO_LIMIT: usize = 1 << 50;
/// What is used where nothing bounds the process: a laptop's share.
const UNBOUND_BYTES: usize = 1 << 30;
/// What a row takes that waits, about.
const WAITING_ROW_BYTES: usize = 200;

/// What a worker may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub bytes: usize,
}

impl Memory {
    /// Of this process, by the limit of its container.
    pub fn found() -> Self {
        let limit = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
        let limit = LIMITS.into_iter().find_map(limit).filter(|limit| *limit < NO_LIMIT);
        Self { bytes: limit.unwrap_or(UNBOUND_BYTES) }
    }

    pub fn cache_bytes(self) -> usize {
        self.bytes / 4
    }

    pub fn write_buffer_bytes(self) -> usize {
        self.bytes / 4
    }

    /// What one of `inputs` partitions may have fetched ahead.
    pub fn fetched_bytes(self, inputs: usize) -> usize {
        self.bytes / 8 / inputs.max(1)
    }

    /// Rows of all joins.
    pub fn waiting_rows(self) -> usize {
        self.bytes / 8 / WAITING_ROW_BYTES
    }
}
