package runtimetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	goruntime "runtime"
)

// Archive makes an OCI archive with one layer that contains the files (path
// without leading slash -> content, all executable) and the environment. It
// returns the archive and its digest. Equal input gives equal bytes.
func Archive(files map[string][]byte, order, env []string) (digest string, archive []byte, err error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"bin/", "tmp/", "etc/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return "", nil, err
		}
	}
	for _, name := range order {
		if err := addFile(w, name, files[name]); err != nil {
			return "", nil, err
		}
	}
	if err := w.Close(); err != nil {
		return "", nil, err
	}
	type object map[string]any
	var out bytes.Buffer
	o := tar.NewWriter(&out)
	blob := func(media string, b []byte) (object, error) {
		h := sha256.Sum256(b)
		sum := hex.EncodeToString(h[:])
		return object{"mediaType": media, "digest": "sha256:" + sum, "size": len(b)}, addFile(o, "blobs/sha256/"+sum, b)
	}
	document := func(media string, v any) (object, error) {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		return blob(media, b)
	}
	layerDesc, err := blob("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	if err != nil {
		return "", nil, err
	}
	config, err := document("application/vnd.oci.image.config.v1+json", object{
		"architecture": goruntime.GOARCH, "os": "linux",
		"config": object{"Env": env},
		"rootfs": object{"type": "layers", "diff_ids": []any{layerDesc["digest"]}},
	})
	if err != nil {
		return "", nil, err
	}
	manifest, err := document("application/vnd.oci.image.manifest.v1+json", object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []object{layerDesc},
	})
	if err != nil {
		return "", nil, err
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []object{manifest}})
	if err != nil {
		return "", nil, err
	}
	if err := addFile(o, "index.json", index); err != nil {
		return "", nil, err
	}
	if err := addFile(o, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return "", nil, err
	}
	if err := o.Close(); err != nil {
		return "", nil, err
	}
	h := sha256.Sum256(out.Bytes())
	return fmt.Sprintf("sha256:%x", h), out.Bytes(), nil
}

func addFile(w *tar.Writer, name string, b []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(b))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(b))
	return err
}
