//! Object storage, as snapshots use it: small objects whole, files in parts, lists. Calls block.
//!
//! Secrets are read from their files whenever a client is made, and one is made for each snapshot or restore: so a
//! rotation needs no word.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use millrace_crds::pipeline::{AzureStorage, GcsStorage, S3Storage, SecretKeyRef, Storage as Spec};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, RetryConfig, WriteMultipart,
};
use ring::digest::{Context, SHA256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::secrets::Secrets;

/// How long a request may take with all its retries: whoever asked tries again later anyway.
const REQUEST_MS: u64 = 30_000;
const RETRIES: usize = 3;
/// A file is sent in parts of this size: the least that S3 takes is 5 MiB.
const PART_BYTES: usize = 8 << 20;
/// Parts of one file, and files of one snapshot, at once.
const AT_ONCE: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The spec, or what its secrets hold.
    #[error("{}", .0.join("; "))]
    Settings(Vec<String>),
    #[error("{0} is not in storage")]
    Missing(String),
    #[error("{0} in storage is damaged: it has another hash than its manifest says")]
    Damaged(String),
    /// Of the store, or of the way to it.
    #[error("{doing} {key} in storage")]
    Request { doing: &'static str, key: String, source: object_store::Error },
    #[error("{doing} {path}")]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
}

impl StorageError {
    /// True for what may pass by itself.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Request { .. })
    }

    fn request(doing: &'static str, key: &Key) -> impl FnOnce(object_store::Error) -> Self {
        let key = key.to_string();
        move |source| match source {
            object_store::Error::NotFound { .. } => Self::Missing(key),
            source => Self::Request { doing, key, source },
        }
    }

    fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { doing, path, source }
    }
}

/// Where a pipeline's snapshots go.
#[derive(Clone, Debug)]
pub struct Storage {
    spec: Spec,
    secrets: Option<PathBuf>,
    /// What all our keys begin with.
    root: String,
    runtime: Arc<Runtime>,
}

/// An object that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Behind the prefix that was listed.
    pub name: String,
    pub bytes: u64,
    pub modified_ms: i64,
}

impl Storage {
    /// `prefix` is the pipeline's.
    pub fn new(spec: &Spec, secrets: Option<&Path>, prefix: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("storage")
            .enable_all()
            .build()?;
        let own = match spec {
            Spec { s3: Some(s3), .. } => s3.prefix.as_str(),
            Spec { gcs: Some(gcs), .. } => gcs.prefix.as_str(),
            Spec { azure: Some(azure), .. } => azure.prefix.as_str(),
            _ => "",
        };
        let root = format!("{}/{prefix}", own.trim_matches('/')).trim_start_matches('/').to_owned();
        Ok(Self { spec: spec.clone(), secrets: secrets.map(Path::to_owned), root, runtime: Arc::new(runtime) })
    }

    /// A client with the secrets of now.
    pub fn connect(&self) -> Result<Store, StorageError> {
        let mut secrets = Secrets::new(self.secrets.as_deref());
        let client = match &self.spec {
            Spec { s3: Some(s3), .. } => open_s3(s3, &mut secrets),
            Spec { gcs: Some(gcs), .. } => open_gcs(gcs, &mut secrets),
            Spec { azure: Some(azure), .. } => open_azure(azure, &mut secrets),
            Spec { file: Some(file), .. } => std::fs::create_dir_all(&file.path)
                .map_err(|error| format!("spec.state.storage.file: create {}: {error}", file.path))
                .and_then(|()| LocalFileSystem::new_with_prefix(&file.path).map_err(|error| error.to_string()))
                .map(|store| Arc::new(store.with_automatic_cleanup(true)) as Arc<dyn ObjectStore>),
            _ => Err("spec.state.storage: exactly one kind of storage is needed".to_owned()),
        };
        let mut mistakes = secrets.into_mistakes();
        match client {
            Ok(client) if mistakes.is_empty() => {
                Ok(Store { client, root: self.root.clone(), runtime: Arc::clone(&self.runtime) })
            }
            Ok(_) => Err(StorageError::Settings(mistakes)),
            Err(mistake) => {
                mistakes.push(mistake);
                Err(StorageError::Settings(mistakes))
            }
        }
    }

    /// The address of an object, for people and for [`Self::key_of`].
    pub fn address(&self, key: &str) -> String {
        format!("{}/{}/{key}", self.place(), self.root)
    }

    fn place(&self) -> String {
        match &self.spec {
            Spec { s3: Some(s3), .. } => format!("s3://{}", s3.bucket),
            Spec { gcs: Some(gcs), .. } => format!("gs://{}", gcs.bucket),
            Spec { azure: Some(azure), .. } => format!("azure://{}/{}", azure.account, azure.container),
            Spec { file: Some(file), .. } => format!("file://{}", file.path.trim_end_matches('/')),
            _ => String::new(),
        }
    }

    /// The same place, seen from the folder that holds an address of it: another pipeline's prefix, or one's own. And the
    /// key below it.
    pub fn beside(&self, address: &str, depth: usize) -> Result<(Self, String), StorageError> {
        let place = self.place();
        let other = || {
            StorageError::Settings(vec![format!(
                "{address} is not in the pipeline's own storage ({place}): copy it there, or use a storage that holds both"
            )])
        };
        let key = address.strip_prefix(&place).and_then(|key| key.strip_prefix('/')).ok_or_else(other)?;
        let parts: Vec<&str> = key.split('/').collect();
        let (root, below) = parts.split_at_checked(parts.len().saturating_sub(depth)).ok_or_else(other)?;
        Ok((Self { root: root.join("/"), ..self.clone() }, below.join("/")))
    }
}

fn client_options(http: bool) -> ClientOptions {
    ClientOptions::new().with_allow_http(http).with_timeout(Duration::from_millis(REQUEST_MS))
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES,
        retry_timeout: Duration::from_millis(REQUEST_MS),
    }
}

type Opened = Result<Arc<dyn ObjectStore>, String>;

fn shared<S: ObjectStore>(built: object_store::Result<S>) -> Opened {
    built.map(|store| Arc::new(store) as Arc<dyn ObjectStore>).map_err(|error| format!("spec.state.storage: {error}"))
}

fn open_s3(spec: &S3Storage, secrets: &mut Secrets<'_>) -> Opened {
    let http = spec.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&spec.bucket)
        .with_virtual_hosted_style_request(!spec.path_style)
        .with_client_options(client_options(http))
        .with_retry(retry());
    if let Some(region) = &spec.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &spec.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(credentials) = &spec.credentials {
        let mut text = |key: &str| secrets.text("spec.state.storage.s3.credentials", &key_of(&credentials.name, key));
        builder = builder.with_access_key_id(text("accessKeyId")).with_secret_access_key(text("secretAccessKey"));
    }
    shared(builder.build())
}

fn open_gcs(spec: &GcsStorage, secrets: &mut Secrets<'_>) -> Opened {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&spec.bucket)
        .with_client_options(client_options(false))
        .with_retry(retry());
    if let Some(credentials) = &spec.credentials {
        let key = key_of(&credentials.name, "serviceAccountKey");
        builder = builder.with_service_account_key(secrets.text("spec.state.storage.gcs.credentials", &key));
    }
    shared(builder.build())
}

fn open_azure(spec: &AzureStorage, secrets: &mut Secrets<'_>) -> Opened {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_account(&spec.account)
        .with_container_name(&spec.container)
        .with_client_options(client_options(false))
        .with_retry(retry());
    if let Some(credentials) = &spec.credentials {
        let key = key_of(&credentials.name, "accountKey");
        builder = builder.with_access_key(secrets.text("spec.state.storage.azure.credentials", &key));
    }
    shared(builder.build())
}

fn key_of(name: &str, key: &str) -> SecretKeyRef {
    SecretKeyRef { name: name.to_owned(), key: key.to_owned() }
}

/// A client. Keys are below the pipeline's own prefix.
#[derive(Clone, Debug)]
pub struct Store {
    client: Arc<dyn ObjectStore>,
    root: String,
    runtime: Arc<Runtime>,
}

impl Store {
    fn key(&self, key: &str) -> Key {
        Key::from(format!("{}/{key}", self.root))
    }

    /// What lies below a prefix, in no order.
    pub fn list(&self, prefix: &str) -> Result<Vec<Object>, StorageError> {
        let below = self.key(prefix.trim_end_matches('/'));
        let object = |meta: ObjectMeta| {
            let name = meta.location.as_ref().strip_prefix(below.as_ref()).unwrap_or_default();
            let modified_ms = meta.last_modified.timestamp_millis();
            Object { name: name.trim_start_matches('/').to_owned(), bytes: meta.size, modified_ms }
        };
        let listed = self.runtime.block_on(self.client.list(Some(&below)).map_ok(object).try_collect());
        listed.map_err(StorageError::request("list", &below))
    }

    /// The sizes of what lies below a prefix, by name.
    pub fn sizes(&self, prefix: &str) -> Result<BTreeMap<String, u64>, StorageError> {
        Ok(self.list(prefix)?.into_iter().map(|object| (object.name, object.bytes)).collect())
    }

    pub fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let key = self.key(key);
        let put = self.runtime.block_on(self.client.put(&key, bytes.into()));
        put.map(drop).map_err(StorageError::request("write", &key))
    }

    /// Writes an object unless there is one under this key, which stays then.
    pub fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let key = self.key(key);
        // Not every store that speaks S3 knows the condition: one that is there is found in any case.
        let put = async {
            match self.client.head(&key).await {
                Err(object_store::Error::NotFound { .. }) => {
                    self.client.put_opts(&key, bytes.into(), PutMode::Create.into()).await.map(drop)
                }
                there => there.map(drop),
            }
        };
        match self.runtime.block_on(put) {
            Ok(()) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(StorageError::request("write", &key)(error)),
        }
    }

    pub fn get(&self, key: &str) -> Result<Vec<u8>, StorageError> {
        let key = self.key(key);
        let get = async { self.client.get(&key).await?.bytes().await };
        self.runtime.block_on(get).map(Into::into).map_err(StorageError::request("read", &key))
    }

    pub fn delete(&self, key: &str) -> Result<(), StorageError> {
        let key = self.key(key);
        match self.runtime.block_on(self.client.delete(&key)) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(StorageError::request("delete", &key)(error)),
        }
    }

    /// Copies an object of this place to another prefix of it.
    pub fn copy_to(&self, key: &str, other: &Self, to: &str) -> Result<(), StorageError> {
        let (from, to) = (self.key(key), other.key(to));
        self.runtime.block_on(self.client.copy(&from, &to)).map_err(StorageError::request("copy", &from))
    }

    /// Sends files, each to its key.
    pub fn upload(&self, files: &[(PathBuf, String)]) -> Result<(), StorageError> {
        let all = futures::stream::iter(files).map(|(path, key)| self.upload_one(path, self.key(key)));
        self.runtime.block_on(all.buffer_unordered(AT_ONCE).try_collect::<()>())
    }

    async fn upload_one(&self, path: &Path, key: Key) -> Result<(), StorageError> {
        let mut file = tokio::fs::File::open(path).await.map_err(StorageError::file("open", path))?;
        let mut part = Vec::new();
        let mut read = async |part: &mut Vec<u8>| {
            part.clear();
            let read = (&mut file).take(PART_BYTES as u64).read_to_end(part).await;
            read.map_err(StorageError::file("read", path))
        };
        if read(&mut part).await? < PART_BYTES {
            let put = self.client.put(&key, part.into()).await;
            return put.map(drop).map_err(StorageError::request("write", &key));
        }
        let upload = self.client.put_multipart(&key).await.map_err(StorageError::request("write", &key))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        loop {
            upload.write(&part);
            upload.wait_for_capacity(AT_ONCE).await.map_err(StorageError::request("write", &key))?;
            if read(&mut part).await? == 0 {
                break;
            }
        }
        upload.finish().await.map(drop).map_err(StorageError::request("write", &key))
    }

    /// Fetches objects into files, each of which is there only once it is whole and has its hash. What `go` refuses to
    /// begin is left out; true when all are there. `pace` is called between the pieces that come, and may take its time.
    pub fn download(&self, files: &[Wanted], go: &dyn Fn() -> bool, pace: &dyn Fn()) -> Result<bool, StorageError> {
        let one = async |wanted: &Wanted| match go() {
            true => self.download_one(wanted, pace).await.map(|()| true),
            false => Ok(false),
        };
        let all = futures::stream::iter(files).map(one).buffer_unordered(AT_ONCE);
        self.runtime.block_on(all.try_fold(true, async |all, one| Ok(all && one)))
    }

    async fn download_one(
        &self,
        Wanted { key, path, bytes, sha256 }: &Wanted,
        pace: &dyn Fn(),
    ) -> Result<(), StorageError> {
        let key = self.key(key);
        let part = path.with_extension("part");
        let got = self.client.get(&key).await.map_err(StorageError::request("read", &key))?;
        let mut file = tokio::fs::File::create(&part).await.map_err(StorageError::file("create", &part))?;
        let (mut body, mut hash, mut length) = (got.into_stream(), Context::new(&SHA256), 0);
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(StorageError::request("read", &key))?;
            hash.update(&chunk);
            length += chunk.len() as u64;
            file.write_all(&chunk).await.map_err(StorageError::file("write", &part))?;
            pace();
        }
        file.flush().await.map_err(StorageError::file("write", &part))?;
        if length != *bytes || hex(hash.finish().as_ref()) != *sha256 {
            return Err(StorageError::Damaged(key.to_string()));
        }
        tokio::fs::rename(&part, path).await.map_err(StorageError::file("move", path))
    }
}

/// A file that is to be fetched.
pub struct Wanted {
    pub key: String,
    pub path: PathBuf,
    pub bytes: u64,
    pub sha256: String,
}

/// The SHA-256 of bytes, as names and manifests hold it.
pub fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&SHA256, bytes).as_ref())
}

/// The SHA-256 of a file, and its size.
pub fn sha256_of_file(path: &Path) -> std::io::Result<(String, u64)> {
    let (mut file, mut hash, mut length) = (std::fs::File::open(path)?, Context::new(&SHA256), 0);
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hex(hash.finish().as_ref()), length)),
            read => {
                hash.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
