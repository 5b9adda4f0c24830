//! Towpath in whole clusters: control plane, two nodes with real kubelets, containerd and kube-proxy, the
//! agent as its `DaemonSet`, and pods that the scheduler places.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where something unexpected happens"
)]

mod across;
mod deployment;
mod full;
mod gateway;
mod lifecycle;
mod mishaps;
mod operated;
mod pools;
mod reboot;
mod waiting;
