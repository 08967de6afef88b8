//! What a cluster consists of: the processes, their arguments and their configuration files.
//!
//! Versions: Debian's containerd 1.6 speaks to Kubernetes 1.34, and the next kubelet refuses cgroup v1, which many a
//! container that continuous integration runs in still has.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::certificates::{Authority, Identity, service_accounts};
use crate::sandbox::Network;

pub const NODE: &str = "node";
/// The image of pods' sandboxes, and what our image is built on.
pub const BASE_IMAGE: &str = "localhost/millrace-base:latest";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Containerd,
    Kubelet,
    KubeProxy,
    CoreDns,
}

impl Component {
    /// The program, as its log is called too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::CoreDns => "coredns",
        }
    }

    pub fn program(self, kube: &Path) -> PathBuf {
        match self {
            Self::Containerd => PathBuf::from(self.name()),
            _ => kube.join(self.name()),
        }
    }

    pub fn arguments(self, layout: &Layout) -> Vec<String> {
        let dir = layout.dir.display();
        let text = match self {
            // The machine that it could survive takes the cluster with it: no need to sync.
            Self::Etcd => format!("--data-dir={dir}/etcd --unsafe-no-fsync --log-level=warn"),
            Self::ApiServer => api_server(layout),
            Self::ControllerManager => format!(
                "--kubeconfig={dir}/admin.kubeconfig --leader-elect=false --use-service-account-credentials
                --service-account-private-key-file={dir}/pki/service-accounts.key --root-ca-file={dir}/pki/ca.crt
                --kube-api-qps=200 --kube-api-burst=400 --horizontal-pod-autoscaler-sync-period=2s"
            ),
            Self::Scheduler => format!("--kubeconfig={dir}/admin.kubeconfig --leader-elect=false"),
            Self::Containerd => format!("--config={dir}/containerd.toml"),
            Self::Kubelet => format!(
                "--config={dir}/kubelet.yaml --kubeconfig={dir}/node.kubeconfig --hostname-override={NODE}
                --node-ip={ip} --root-dir={dir}/kubelet",
                ip = layout.network.node()
            ),
            Self::KubeProxy => format!("--config={dir}/kube-proxy.yaml"),
            Self::CoreDns => format!("-conf={dir}/Corefile"),
        };
        text.split_whitespace().map(str::to_owned).collect()
    }
}

fn api_server(layout: &Layout) -> String {
    let Layout { dir, network } = layout;
    let pki = dir.join("pki");
    format!(
        "--etcd-servers=http://127.0.0.1:2379 --advertise-address={ip} --service-cluster-ip-range={services}
        --client-ca-file={pki}/ca.crt --tls-cert-file={pki}/node.crt --tls-private-key-file={pki}/node.key
        --service-account-key-file={pki}/service-accounts.pub
        --service-account-signing-key-file={pki}/service-accounts.key
        --service-account-issuer=https://kubernetes.default.svc
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged
        --kubelet-certificate-authority={pki}/ca.crt --kubelet-client-certificate={pki}/admin.crt
        --kubelet-client-key={pki}/admin.key --kubelet-preferred-address-types=InternalIP
        --requestheader-client-ca-file={pki}/ca.crt --requestheader-allowed-names=aggregator
        --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group
        --requestheader-username-headers=X-Remote-User --enable-aggregator-routing
        --proxy-client-cert-file={pki}/aggregator.crt --proxy-client-key-file={pki}/aggregator.key
        --audit-policy-file={dir}/audit-policy.yaml --audit-log-path={dir}/audit.log --audit-log-maxsize=10000
        --profiling=false",
        ip = network.node(),
        services = network.services(),
        pki = pki.display(),
        dir = dir.display(),
    )
}

/// Where the files of a cluster are, and which addresses it has.
pub struct Layout {
    pub dir: PathBuf,
    pub network: Network,
}

impl Layout {
    pub fn write(&self) -> anyhow::Result<()> {
        self.write_certificates().context("make certificates")?;
        for user in ["admin", NODE] {
            self.file(&format!("{user}.kubeconfig"), self.kubeconfig(user))?;
        }
        // The addresses of pods are not those of this machine: its domains to search mean nothing to them.
        self.file("resolv.conf", format!("nameserver {}\n", self.network.node()))?;
        self.file("audit-policy.yaml", AUDIT_POLICY.to_owned())?;
        self.file("containerd.toml", self.containerd())?;
        fs::create_dir_all(self.dir.join("cni")).context("make the folder of the network's configuration")?;
        self.file("cni/10-pods.conflist", self.pod_network())?;
        self.file("kubelet.yaml", self.kubelet())?;
        self.file("kube-proxy.yaml", self.kube_proxy())?;
        self.file("Corefile", self.corefile())
    }

    fn file(&self, name: &str, text: String) -> anyhow::Result<()> {
        fs::write(self.dir.join(name), text).with_context(|| format!("write {name}"))
    }

    fn write_certificates(&self) -> anyhow::Result<()> {
        let pki = self.dir.join("pki");
        let authority = Authority::new(&pki)?;
        let addresses = [self.network.node(), self.network.api_service(), Ipv4Addr::LOCALHOST];
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", NODE];
        let hosts: Vec<String> =
            addresses.iter().map(ToString::to_string).chain(names.iter().map(ToString::to_string)).collect();
        // The API server serves with the node's certificate: they share its address.
        let node = format!("system:node:{NODE}");
        authority.sign(NODE, &Identity { user: &node, group: Some("system:nodes"), hosts: &hosts })?;
        authority.sign("admin", &Identity { user: "admin", group: Some("system:masters"), hosts: &[] })?;
        authority.sign("aggregator", &Identity { user: "aggregator", group: None, hosts: &[] })?;
        service_accounts(&pki)
    }

    fn kubeconfig(&self, user: &str) -> String {
        format!(
            "apiVersion: v1
kind: Config
current-context: millrace
clusters: [{{name: millrace, cluster: {{server: 'https://{ip}:6443', certificate-authority: {pki}/ca.crt}}}}]
users: [{{name: {user}, user: {{client-certificate: {pki}/{user}.crt, client-key: {pki}/{user}.key}}}}]
contexts: [{{name: millrace, context: {{cluster: millrace, user: {user}}}}}]
",
            ip = self.network.node(),
            pki = self.dir.join("pki").display(),
        )
    }

    /// Two traps: without `restrict_oom_score_adj` every sandbox fails with `can't get final child's PID from pipe: EOF`
    /// where root lacks CAP_SYS_RESOURCE; without `opt` it makes a folder in this machine's /opt.
    fn containerd(&self) -> String {
        format!(
            r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{BASE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{dir}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"#,
            dir = self.dir.display()
        )
    }

    /// A line of its own from the node to each pod. A bridge would let two pods talk past the node's connection tracking,
    /// which has to turn the answers of services around. No plugin of Debian's enforces a NetworkPolicy.
    fn pod_network(&self) -> String {
        format!(
            r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "ptp", "ipam": {{
    "type": "host-local", "dataDir": "/run/pod-addresses", "ranges": [[{{"subnet": "{}"}}]],
    "routes": [{{"dst": "0.0.0.0/0"}}]}}}}]}}
"#,
            self.network.pods()
        )
    }

    fn kubelet(&self) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {dir}/pki/ca.crt}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {dir}/pki/{NODE}.crt
tlsPrivateKeyFile: {dir}/pki/{NODE}.key
containerRuntimeEndpoint: unix://{dir}/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /{group}
podLogsDir: {dir}/pods
volumePluginDir: {dir}/volume-plugins
clusterDNS: ['{ip}']
clusterDomain: cluster.local
resolvConf: {dir}/resolv.conf
failSwapOn: false
# A full disk of the machine is not what the tests are about.
evictionHard: {{memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}}
imageGCHighThresholdPercent: 100
",
            dir = self.dir.display(),
            group = self.control_group(),
            ip = self.network.node(),
        )
    }

    /// All containers are below it. The folder's own name, so that the guard finds what to remove.
    pub fn control_group(&self) -> String {
        self.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn kube_proxy(&self) -> String {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: {dir}/admin.kubeconfig}}
hostnameOverride: {NODE}
mode: iptables
clusterCIDR: {pods}
# The machine's own limit, which the sandbox may not change.
conntrack: {{maxPerCore: 0}}
",
            dir = self.dir.display(),
            pods = self.network.pods(),
        )
    }

    fn corefile(&self) -> String {
        format!(
            ".:53 {{
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {dir}/admin.kubeconfig
        pods insecure
        ttl 1
    }}
}}
",
            dir = self.dir.display(),
        )
    }
}

/// Every write, with who made it (`userAgent`), one JSON object a line.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
";
