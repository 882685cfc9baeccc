//! Containers on a buffer: podman's storage, images in files, fuse-overlayfs, many overlays over one directory, trees of
//! overlays that are staged. What they show and leave is what they show and leave on tmpfs.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, binary};
use forebay_tests::procs::{LET_GO, run, try_run, try_run_for};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::site::Site;
use forebay_tests::{on_both_kinds, on_every_kind, site, until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// A tree of some files.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to");

/// A directory in memory, beside what is tested.
fn in_memory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap()
}

/// What a script says in a directory.
fn said_by(script: &str, dir: &Path) -> String {
    said_in(Command::new("bash"), script, dir)
}

/// A shell with process numbers of its own, that waits for what others leave: where nobody does, Podman waits 20 s for the
/// process beside a container to be gone. It has mounts of its own, too, and holds none of those that other tests have;
/// what is mounted in `keep` stays.
fn reaping_shell(keep: &Path) -> Command {
    let mut shell = Command::new("unshare");
    let begin = format!("{LET_GO}exec bash \"$@\"");
    shell.args(["--pid", "--fork", "--mount-proc", "bash", "-c", &begin, "bash"]).env("KEEP", keep);
    shell
}

fn said_in(mut shell: Command, script: &str, dir: &Path) -> String {
    shell.args(["-euc", script]).current_dir(dir).env("DOCS", DOCS);
    shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let (ok, said) = try_run_for(&mut shell, LIMIT);
    assert!(ok, "{script}: {said}");
    said
}

/// Unmounts what a failed test leaves, before its directory goes.
struct Unmounted(Vec<PathBuf>);

impl Drop for Unmounted {
    fn drop(&mut self) {
        for point in &self.0 {
            let _ = try_run_for(Command::new("umount").arg("-l").arg(point), LIMIT);
        }
    }
}

// ---- podman ---------------------------------------------------------------------------------------------------

const CONTAINERS: &str = r#"
    mkdir -p podman image/bin
    cp /bin/busybox image/bin
    for name in sh ls cat echo mkdir rm mv ln chmod test; do ln -s busybox image/bin/$name; done
    cat > containers.conf <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
static_dir = "$PWD/podman/storage/libpod"
tmp_dir = "$PWD/podman/tmp"
END
    export CONTAINERS_CONF=$PWD/containers.conf
    run=$(mktemp -d /tmp/podXXXX)
    trap 'rm -rf $run' EXIT
    podman() { command podman --root $PWD/podman/storage --runroot $run --log-level error "$@"; }
    tar -C image -c . | podman import -q - small > /dev/null
    podman run --rm small sh -c 'echo hello; mkdir /d; echo 1 > /d/f; mv /d /e; ls -1 /e; rm /bin/cat; ls -1 /bin'
    podman run --name first small sh -c 'rm /bin/cat; mkdir /data; echo x > /data/x; ln /data/x /data/y; chmod 640 /data/x'
    podman diff first
    podman commit -q first second > /dev/null
    podman run --rm second sh -c 'ls -l /data/x | { read mode rest; echo $mode; }; ls -1 /data; test ! -e /bin/cat; mv /data /moved; ls -1 /moved'
    podman rm first > /dev/null
    podman image prune -af > /dev/null
    podman images -q
    ls -1 podman/storage/overlay
"#;

fn podman_works_on(on: &Path) {
    let theirs = in_memory();
    let expected = said_in(reaping_shell(theirs.path()), CONTAINERS, theirs.path());
    assert!(expected.contains("hello") && expected.contains("D /bin/cat"), "{expected}");
    let ours = on.join("containers");
    fs::create_dir(&ours).unwrap();
    let shell = reaping_shell(on.parent().unwrap());
    assert_eq!(said_in(shell, CONTAINERS, &ours), expected);
}

on_every_kind!(podman_on_a_scratch_buffer);

fn podman_on_a_scratch_buffer(buffer: &Buffer) {
    podman_works_on(&buffer.root());
}

on_both_kinds!(podman_on_a_cache);

fn podman_on_a_cache(kind: site::Kind) {
    let site = Site::mounted_as(kind, 128 * MIB, &["--drain", "end"]);
    podman_works_on(&site.mnt(""));
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

#[test]
fn podman_over_two_servers() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    podman_works_on(&served.root(1));
}

/// The page's example, as it stands.
#[test]
fn the_page_about_containers_runs_as_it_stands() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/containers.md");
    let text = fs::read_to_string(page).unwrap();
    let example = text.split("```sh\n# A worked example").nth(1).unwrap();
    let example = example.split("```").next().unwrap().split_once('\n').unwrap().1;
    let place = in_memory();
    let _unmounted = Unmounted(vec![place.path().join("buffer")]);
    let bin = place.path().join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(binary(), bin.join("forebay")).unwrap();
    let mut shell = reaping_shell(place.path());
    shell
        .args(["-euc", example])
        .current_dir(&place)
        .env_remove("FOREBAY_FLASH")
        .env_remove("TMPDIR");
    let dirs = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let (ok, said) = try_run_for(shell.env("PATH", dirs), LIMIT);
    assert!(ok && said.lines().any(|line| line == "42"), "{said}");
    assert!(place.path().join("results.tar").metadata().unwrap().len() > 512);
}

// ---- what Apptainer mounts ------------------------------------------------------------------------------------

/// Apptainer is in no archive of Debian's. What it asks of the file system is done by hand: an image in a file, which begins behind
/// a header as in a SIF, is the lower layer; the upper one is a directory, or an ext4 in a file. Each is used by two containers,
/// one after the other.
const APPTAINER: &str = r#"
    points=$(mktemp -d /tmp/appXXXX)
    trap 'umount -l $points/* 2> /dev/null || true; rmdir $points/* $points' EXIT
    mkdir -p image/bin image/etc layer $points/lower $points/image $points/merged
    cp /bin/busybox image/bin; echo old > image/etc/conf; echo kept > image/etc/kept
    for name in sh ls cat mkdir rm mv; do ln -s busybox image/bin/$name; done
    mksquashfs image image.sqfs -quiet -no-progress -all-root > /dev/null
    head -c 40960 /dev/zero | cat - image.sqfs > image.sif
    mount -t squashfs -o loop,ro,offset=40960 image.sif $points/lower
    truncate -s 64M layer.img; mkfs.ext4 -q layer.img; mount -o loop layer.img $points/image
    contained() {
        mkdir -p $1/upper $1/work
        mount -t overlay overlay -o lowerdir=$points/lower,upperdir=$1/upper,workdir=$1/work $points/merged
        chroot $points/merged /bin/sh -euc "$2"
        umount $points/merged
    }
    for upper in $PWD/layer $points/image; do
        contained $upper 'echo new > /etc/conf; rm /bin/cat; mkdir /data; echo 1 > /data/f; mv /data /moved; ls -1 /moved'
        contained $upper 'read a < /etc/conf; read b < /etc/kept; echo $a $b; ls -1 / /moved /bin; rm -r /moved'
    done
    umount $points/image $points/lower
    e2fsck -fn layer.img > /dev/null 2>&1
    echo sound
"#;

fn what_apptainer_mounts_works_on(on: &Path) {
    let theirs = in_memory();
    let expected = said_in(reaping_shell(theirs.path()), APPTAINER, theirs.path());
    assert!(expected.contains("new kept") && expected.ends_with("sound\n"), "{expected}");
    let ours = on.join("apptainer");
    fs::create_dir(&ours).unwrap();
    assert_eq!(said_in(reaping_shell(on.parent().unwrap()), APPTAINER, &ours), expected);
}

#[test]
fn what_apptainer_mounts_works_on_a_scratch_buffer() {
    let buffer = Buffer::mount(forebay_tests::buffer::Kind::Tmpfs, 256 * MIB);
    what_apptainer_mounts_works_on(&buffer.root());
}

#[test]
fn what_apptainer_mounts_works_on_a_served_cache() {
    let site = Site::mounted_as(site::Kind::Served, 256 * MIB, &["--drain", "end"]);
    what_apptainer_mounts_works_on(&site.mnt(""));
    site.must_be_durable();
    run(Command::new("e2fsck").arg("-fn").arg(site.pfs("apptainer/layer.img")));
}

#[test]
fn what_apptainer_mounts_works_over_two_servers() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    what_apptainer_mounts_works_on(&served.root(1));
}

// ---- images in files ------------------------------------------------------------------------------------------

const FILL: &str = "cp -r $DOCS docs; for i in $(seq 40); do head -c 70000 /dev/urandom > f$i; done; \
    find . -type f ! -name sums -exec sha256sum {} + | sort -k 2 > sums";

/// Makes images below `on`, mounts them from there, and writes into them.
fn images_made_on(on: &Path, point: &Path) {
    for kind in ["ext4", "xfs"] {
        let image = on.join(format!("{kind}.img"));
        fs::File::create(&image).unwrap().set_len(320 * MIB).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(point));
        said_by(FILL, point);
        run(Command::new("umount").arg(point));
    }
    let squashed = on.join("squash.img");
    run(Command::new("mksquashfs").args([DOCS]).arg(&squashed).arg("-quiet"));
}

/// Its loop device may be mounted for writing for a moment after the unmount: another test that begins a mount namespace has a
/// copy of the mount until it has let go of it.
fn mount_for_reading(image: &Path, point: &Path) {
    let mounts = || {
        let mut mount = Command::new("mount");
        let (ok, text) = try_run(mount.args(["-o", "loop,ro"]).arg(image).arg(point));
        assert!(ok || text.contains("busy"), "{text}");
        ok
    };
    until("the image is mounted for reading", LIMIT, mounts);
}

/// They are sound, and have what was written.
fn images_are_sound(on: &Path, point: &Path) {
    run(Command::new("e2fsck").arg("-fn").arg(on.join("ext4.img")));
    run(Command::new("xfs_repair").arg("-n").arg(on.join("xfs.img")));
    for kind in ["ext4", "xfs", "squash"] {
        let image = on.join(format!("{kind}.img"));
        mount_for_reading(&image, point);
        match kind {
            "squash" => said_by("diff -r $DOCS .", point),
            _ => said_by("sha256sum --quiet -c sums", point),
        };
        run(Command::new("umount").arg(point));
    }
}

/// A loop device, and the file behind it.
struct LoopDevice {
    backing: PathBuf,
    file: String,
}

impl LoopDevice {
    /// That of what is mounted on a point.
    fn mounted_on(point: &Path) -> LoopDevice {
        let source = run(Command::new("findmnt").args(["-n", "-o", "SOURCE", "-M"]).arg(point));
        let name = source.trim().strip_prefix("/dev/").unwrap_or_else(|| panic!("{source}"));
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let file = fs::read_to_string(&backing).unwrap();
        LoopDevice { backing, file }
    }

    /// Waits until the kernel has let go of the file. Another test that begins a mount namespace has a copy of the mount
    /// until it has let go of it. With the last copy the file system writes what it still has, its superblock too: by
    /// the fast path that goes into the image, whose mount has died, and beside whoever repairs the image meanwhile.
    fn wait_until_gone(self) {
        let now = || fs::read_to_string(&self.backing).ok();
        let is_gone = || now().is_none_or(|file| file != self.file);
        until("the loop device is gone", LIMIT, is_gone);
    }
}

/// Mounts an image and writes into it: what is synced, and what is not.
fn write_into(image: &Path, point: &Path) -> LoopDevice {
    run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(point));
    let device = LoopDevice::mounted_on(point);
    said_by(
        "rm -r *; head -c 3000000 /dev/urandom > synced; sha256sum synced > sums; sync -f .",
        point,
    );
    let late = format!("head -c 9000000 /dev/urandom > {}/late", point.display());
    let _ = try_run_for(Command::new("bash").args(["-c", &late]), LIMIT);
    device
}

/// An image is written when the mount is killed: what was synced in it is there, and its own fsck finds nothing wrong.
fn an_image_outlives_a_kill(on: &Path, point: &Path, kill: impl FnOnce(), mount: impl FnOnce()) {
    let image = on.join("ext4.img");
    let device = write_into(&image, point);
    kill();
    // What it has behind its device may be written for as long as it is mounted, or not any more: that is the kernel's.
    let _ = try_run_for(Command::new("umount").arg(point), LIMIT);
    device.wait_until_gone();
    mount();
    let (ok, said) = try_run_for(Command::new("e2fsck").arg("-fp").arg(&image), LIMIT);
    assert!(
        ok || said.contains("recovering journal") || said.contains("FILE SYSTEM WAS MODIFIED"),
        "{said}"
    );
    run(Command::new("e2fsck").arg("-fn").arg(&image));
    mount_for_reading(&image, point);
    said_by("sha256sum --quiet -c sums", point);
    run(Command::new("umount").arg(point));
}

/// The same of one that replays its log when it is mounted.
fn an_xfs_image_outlives_a_kill(
    on: &Path,
    point: &Path,
    kill: impl FnOnce(),
    mount: impl FnOnce(),
) {
    let image = on.join("xfs.img");
    let device = write_into(&image, point);
    kill();
    let _ = try_run_for(Command::new("umount").arg(point), LIMIT);
    device.wait_until_gone();
    mount();
    // Two mounts of one UUID are refused: that of before may take a moment to go.
    until("the image is mounted again", LIMIT, || {
        try_run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(point)).0
    });
    said_by("sha256sum --quiet -c sums", point);
    run(Command::new("umount").arg(point));
    run(Command::new("xfs_repair").arg("-n").arg(&image));
}

#[test]
fn images_on_a_scratch_buffer_are_mounted_written_and_sound() {
    let buffer = Buffer::mount(forebay_tests::buffer::Kind::Tmpfs, 1024 * MIB);
    let place = in_memory();
    let point = place.path().join("point");
    fs::create_dir(&point).unwrap();
    let _unmounted = Unmounted(vec![point.clone()]);
    images_made_on(&buffer.root(), &point);
    images_are_sound(&buffer.root(), &point);
    an_image_outlives_a_kill(&buffer.root(), &point, || buffer.kill(), || buffer.start());
}

#[test]
fn images_on_a_cache_are_sound_there_and_on_the_pfs() {
    let site = Site::mounted(1024 * MIB, &["--drain", "end"]);
    let place = in_memory();
    let point = place.path().join("point");
    fs::create_dir(&point).unwrap();
    let _unmounted = Unmounted(vec![point.clone()]);
    images_made_on(&site.mnt(""), &point);
    images_are_sound(&site.mnt(""), &point);
    site.must_be_durable();
    images_are_sound(&site.pfs(""), &point);
    an_image_outlives_a_kill(&site.mnt(""), &point, || site.kill(), || site.mount());
    site.must_be_durable();
    run(Command::new("e2fsck").arg("-fn").arg(site.pfs("ext4.img")));
}

/// Made by one mount, looked at by another one, which reads by TCP.
#[test]
fn images_over_two_servers_are_mounted_written_and_sound() {
    let options = Options { capacity: 1024 * MIB, ..Options::over(2, Store::Tmpfs) };
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    let place = in_memory();
    let point = place.path().join("point");
    fs::create_dir(&point).unwrap();
    let _unmounted = Unmounted(vec![point.clone()]);
    images_made_on(&served.root(0), &point);
    images_are_sound(&served.root(1), &point);
    let kill = || served.kill_mount(0);
    an_image_outlives_a_kill(&served.root(0), &point, kill, || served.mount_again(0));
    an_xfs_image_outlives_a_kill(&served.root(0), &point, kill, || served.mount_again(0));
}

// ---- overlays -------------------------------------------------------------------------------------------------

/// By fuse-overlayfs, as Apptainer and rootless podman have it.
const BY_FUSE: &str = r#"
    mkdir lower upper work merged; mkdir -p lower/dir/deep lower/gone
    for name in one two dir/four dir/deep/five gone/seven; do echo $name > lower/$name; done
    fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work merged
    cd merged; rm one; rm -r gone; mkdir gone; echo new > gone/new; mv two renamed; cp -r dir moved; rm -r dir; echo more >> renamed
    ln renamed again; chmod 600 again; find . -printf '%p %y %m %n %s\n' | grep -v ' d ' | sort; cat renamed moved/deep/five
    cd ..; umount merged; find upper -printf '%p %y %m\n' | grep -v '\.wh\.' | sort
    fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work merged; find merged -printf '%p %y\n' | sort; umount merged
"#;

/// Many overlays over one lower directory on the buffer, at the same time, with all that a kernel overlay can ask of it. Its
/// layers have whole paths: an overlay whose layers are named by where its maker was may lie on any mount, so those of
/// other tests would wait for names that they take for stood on.
const MANY: &str = r#"
    mkdir -p lower/dir; for i in $(seq 50); do echo $i > lower/dir/$i; done
    for n in $(seq 32); do
        mkdir -p $n/upper $n/work $n/merged
        mount -t overlay overlay -o lowerdir=$PWD/lower,upperdir=$PWD/$n/upper,workdir=$PWD/$n/work,index=on,nfs_export=on $n/merged
    done
    for n in $(seq 32); do (rm $n/merged/dir/$n; echo mine > $n/merged/dir/made; mv $n/merged/dir/5$((n % 1)) $n/merged/kept) & done; wait
    for n in $(seq 32); do echo $n $(ls $n/merged/dir | wc -l) $(cat $n/merged/dir/* | sort | sha256sum); umount $n/merged; done
    ls lower/dir | wc -l; find 7/upper -printf '%p %y %m\n' | sort
"#;

fn overlays_work_on(on: &Path) {
    let theirs = in_memory();
    for (name, script) in [("by-fuse", BY_FUSE), ("many", MANY)] {
        let [here, there] = [on, theirs.path()].map(|at| at.join(name));
        let merged = |n: u32| here.join(n.to_string()).join("merged");
        let all = (1..=32).map(merged).chain([here.join("merged")]).collect();
        let _unmounted = Unmounted(all);
        fs::create_dir(&here).unwrap();
        fs::create_dir(&there).unwrap();
        let expected = said_by(script, &there);
        assert_eq!(said_by(script, &here), expected, "{name}");
    }
}

#[test]
fn many_overlays_and_fuse_overlayfs_on_a_scratch_buffer() {
    let buffer = Buffer::mount(forebay_tests::buffer::Kind::Tmpfs, 128 * MIB);
    overlays_work_on(&buffer.root());
}

on_both_kinds!(many_overlays_and_fuse_overlayfs_on_a_cache);

fn many_overlays_and_fuse_overlayfs_on_a_cache(kind: site::Kind) {
    let site = Site::mounted_as(kind, 128 * MIB, &["--drain", "end"]);
    overlays_work_on(&site.mnt(""));
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

#[test]
fn many_overlays_and_fuse_overlayfs_over_two_servers() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    overlays_work_on(&served.root(0));
}

// ---- staging --------------------------------------------------------------------------------------------------

/// What an overlay leaves in its upper directory, and what else trees of images have.
const TREE: &str = r#"
    mkdir opaque dir; mknod gone c 0 0; chmod 0 gone; mknod device b 7 200; mkfifo fifo
    setfattr -n trusted.overlay.opaque -v y opaque; setfattr -n trusted.overlay.redirect -v /x dir
    setfattr -n user.overlay.origin -v 0x00ff dir; echo 1 > dir/a; ln dir/a dir/hard; ln -s a dir/soft
    ln gone opaque/gone; ln fifo dir/fifo; ln -P dir/soft dir/soft-too
    truncate -s 10M sparse; printf x | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
    chown 4242:4343 dir/a; chmod 2640 dir/a; setfacl -m u:77:r dir/a
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 dir/a
    touch -d '2001-02-03 04:05:06.789' dir/a dir; touch -h -d '2002-02-02' dir/soft
"#;

/// All that `find` and `getfattr` show; sizes of directories and numbers of blocks are each file system's own.
const SHOWN: &str = r#"
    find . -mindepth 1 \( -type d -printf '%p d %m %U %G %T@\n' -o -printf '%p %y %m %U %G %n %s %T@ %l\n' \) | sort
    find . \( -type c -o -type b \) -exec stat -c '%n %t:%T' {} + | sort
    find . | sort | xargs getfattr -h -d -m -; find . ! -type l | sort | getfacl -p -; sha256sum sparse dir/a
"#;

/// Root's plans keep all of it.
fn trees_are_staged_whole(tree: &Path, inside: &Path, out: &Path) {
    fs::create_dir(tree).unwrap();
    said_by(TREE, tree);
    let expected = said_by(SHOWN, tree);
    assert!(expected.contains("gone 0:0") && expected.contains("overlay.opaque"), "{expected}");
    for (direction, from, to) in [("in", tree, inside), ("out", inside, out)] {
        let mut command = Command::new(binary());
        let (ok, said) = try_run_for(command.args(["stage", direction]).arg(from).arg(to), LIMIT);
        assert!(ok, "{said}");
        assert_eq!(said_by(SHOWN, to), expected, "{direction}");
    }
}

#[test]
fn trees_of_overlays_are_staged_whole_over_two_servers() {
    let served = Served::with(Options::over(2, Store::Tmpfs), &[Via::Local, Via::Tcp]);
    for at in [0, 1] {
        let place = tempfile::tempdir().unwrap();
        let inside = served.root(at).join(format!("tree{at}"));
        trees_are_staged_whole(&place.path().join("tree"), &inside, &place.path().join("out"));
    }
}

#[test]
fn trees_of_overlays_are_staged_whole_by_root_and_a_user_is_told_what_is_missing() {
    let buffer = Buffer::mount(forebay_tests::buffer::Kind::Tmpfs, 128 * MIB);
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    trees_are_staged_whole(&tree, &buffer.root().join("tree"), &place.path().join("out"));

    // Who may not read one file, nor make a device, is told of both by name; the rest is there.
    for dir in [place.path(), &buffer.root()] {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let theirs = buffer.root().join("theirs");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "5000", "--regid", "5000", "--clear-groups"]).arg(binary());
    let (ok, said) = try_run_for(command.args(["stage", "in"]).arg(&tree).arg(&theirs), LIMIT);
    assert!(!ok && said.contains("theirs/device") && said.contains("dir/a"), "{said}");
    assert_eq!(said_by("stat -c '%F %t:%T' gone", &theirs).trim(), "character special file 0:0");
    // Nor may he give a file away.
    let copy = buffer.root().join("copy");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "5000", "--regid", "5000", "--clear-groups"]).arg(binary());
    command.args(["stage", "in"]).arg(tree.join("sparse")).arg(&copy);
    let (ok, said) = try_run_for(&mut command, LIMIT);
    assert!(ok && said.contains("1 file is another user's, its copy is yours"), "{said}");
    assert_eq!(said_by("stat -c %u copy", &buffer.root()).trim(), "5000");
}
