#!/busybox/sh
# The guest's first process: mounts what a system has, loads modules, runs the tests, ends.
/busybox/busybox --install -s /busybox
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/busybox HOME=/tmp TERM=dumb

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t bpf bpf /sys/fs/bpf
# The root is in memory and can be written to. A file system on one of these would hide the test
# programs where the checkout lies below it.
mkdir -p /run/netns /tmp
ln -sf /proc/mounts /etc/mtab

for module in /modules/*; do
    [ -e "$module" ] && insmod "$module"
done
ip link set lo up

echo "towpath-vm: booted $(uname -r)"
/tests.sh
echo "towpath-vm: done"
poweroff -f
