//go:build release

package release

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A release is signed with a key made here, and checked with the commands of docs/install.md: they
// pass, and fail for a changed file, for one whose checksum was changed, too, and with another key.
func TestASignedReleaseIsCheckedOffline(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not here; dev/ctl/internal/release has the same test without it")
	}
	dist := os.Getenv("DIST")
	if dist == "" {
		dist = "../../dist"
	}
	dist, err := filepath.Abs(dist)
	if err != nil {
		t.Fatal(err)
	}
	folder, keys := filepath.Join(t.TempDir(), "dist"), t.TempDir()
	linked(t, dist, folder)
	for _, name := range []string{"ours", "theirs"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(keys, name), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		sign := exec.CommandContext(t.Context(), "dev/ctl.sh", "sign", "-key", filepath.Join(keys, name), "-out", folder)
		sign.Dir = "../.."
		if out, err := sign.CombinedOutput(); err != nil {
			t.Fatalf("sign: %v\n%s", err, out)
		}
		// What users get by another way than the release.
		if err := os.Rename(filepath.Join(folder, "cosign.pub"), filepath.Join(keys, name+".pub")); err != nil {
			t.Fatal(err)
		}
		if name == "ours" {
			err = os.Rename(filepath.Join(folder, "SHA256SUMS.sig"), filepath.Join(keys, "signature"))
		} else {
			err = os.Rename(filepath.Join(keys, "signature"), filepath.Join(folder, "SHA256SUMS.sig"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, key string, want bool) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(keys, key+".pub"))
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(folder), "cosign.pub"), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", block(t, "install.md", "openssl dgst"))
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); (err == nil) != want {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
	check("as it was released", "ours", true)
	check("with the key of somebody else", "theirs", false)
	replace(t, filepath.Join(folder, "ebb.yaml"), "kind: List\n")
	check("with a manifest that was changed", "ours", false)
	again := exec.CommandContext(t.Context(), "bash", "-c", "sums=$(sha256sum ebb.yaml); sed -i \"s|.*  ebb.yaml$|$sums|\" SHA256SUMS && sha256sum --strict --quiet -c SHA256SUMS")
	again.Dir = folder
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check("with its checksum, too", "ours", false)
}

// linked makes a folder with links to the files of another one, and a copy of the checksums.
func linked(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, relative), 0o755)
		}
		return os.Symlink(path, filepath.Join(to, relative))
	})
	text, err1 := os.ReadFile(filepath.Join(from, "SHA256SUMS"))
	if err := errors.Join(err, err1); err != nil {
		t.Fatalf("%v: run `make release VERSION=v0.1.0` first, or name the folder of a release with DIST", err)
	}
	replace(t, filepath.Join(to, "SHA256SUMS"), string(text))
	for _, name := range []string{"SHA256SUMS.sig", "cosign.pub"} { // of a release that is signed already
		if err := os.Remove(filepath.Join(to, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// replace writes a file in place of a link.
func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}
