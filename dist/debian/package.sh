#!/usr/bin/env bash
# Makes one Debian package: package.sh ARCH VERSION BUILT COMMON OUT. build.sh calls it.
set -euo pipefail
arch=$1 version=$2 built=$3 common=$4 out=$5
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tree=$built/tree
rm -rf "$tree"

put() { install -D -m "$1" "$2" "$tree/$3"; } # MODE FROM TO

put 755 "$built/drover" usr/bin/drover
for u in "$root"/dist/systemd/*.service; do put 644 "$u" "usr/lib/systemd/system/$(basename "$u")"; done
put 644 "$root/dist/sysusers.d/drover.conf" usr/lib/sysusers.d/drover.conf
put 644 "$root/dist/tmpfiles.d/drover.conf" usr/lib/tmpfiles.d/drover.conf
put 644 "$root/dist/needrestart/drover.conf" etc/needrestart/conf.d/drover.conf
put 644 "$common/etc/coordinator.example.hcl" etc/drover/coordinator.example.hcl
put 644 "$common/etc/node.example.hcl" etc/drover/node.example.hcl
install -d -m 750 "$tree/etc/drover/tls"
install -d -m 711 "$tree/var/lib/drover"
put 644 "$common/completions/bash" usr/share/bash-completion/completions/drover
put 644 "$common/completions/zsh" usr/share/zsh/vendor-completions/_drover
[ ! -e "$common/completions/fish" ] || put 644 "$common/completions/fish" usr/share/fish/vendor_completions.d/drover.fish
for m in "$common"/man/*.gz; do put 644 "$m" "usr/share/man/man1/$(basename "$m")"; done
put 644 "$built/copyright" usr/share/doc/drover/copyright
# The pages of the package link to each other by name, and to all else where the sources are published.
source=https://github.com/drover-run/drover/blob/main
for d in explanation/concepts how-to/install how-to/operating reference/job-file; do
  sed -E -e 's#\]\((\.\./)?([a-z-]+/)?(concepts|install|operating|job-file)\.md#](@\3.md#g' \
    -e "s#\]\(\.\./\.\./#]($source/#g; s#\]\(\.\./#]($source/docs/#g; s#\]\(([a-z0-9-]+\.md)#]($source/docs/$(dirname "$d")/\1#g; s#\]\(@#](#g" \
    "$root/docs/$d.md" >"$built/page.md"
  put 644 "$built/page.md" "usr/share/doc/drover/$(basename "$d").md"
done
(cd "$root/examples" && git ls-files -z .) | while IFS= read -r -d '' f; do put 644 "$root/examples/$f" "usr/share/doc/drover/examples/$f"; done

install -d -m 755 "$tree/DEBIAN"
size=$(du -k --apparent-size -s --exclude=DEBIAN "$tree" | cut -f1)
sed -e "s/@ARCH@/$arch/; s/@VERSION@/$version/; s/@SIZE@/$size/" "$here/control" >"$tree/DEBIAN/control"
for s in postinst prerm postrm; do install -m 755 "$here/$s" "$tree/DEBIAN/$s"; done
(cd "$tree" && find etc -type f | sort | sed 's|^|/|') >"$tree/DEBIAN/conffiles"
(cd "$tree" && find usr var -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
chmod 644 "$tree"/DEBIAN/{control,conffiles,md5sums}
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
# gzip: an emulated or small machine unpacks it in a quarter of the time of xz.
dpkg-deb --root-owner-group -Zgzip --build "$tree" "$built/package.deb" >/dev/null
mv "$built/package.deb" "$out/drover_${version}_$arch.deb"
