package release

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// verify checks as a user does, also on a machine without openssl.
func verify(dir string, public []byte) error {
	block, _ := pem.Decode(public)
	if block == nil {
		return errors.New("no public key in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, sums))
	if err != nil {
		return err
	}
	encoded, err := os.ReadFile(filepath.Join(dir, signature))
	if err != nil {
		return err
	}
	signed, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(encoded)))
	if err != nil {
		return err
	}
	digest := sha256.Sum256(text)
	if ec, ok := key.(*ecdsa.PublicKey); !ok || !ecdsa.VerifyASN1(ec, digest[:], signed) {
		return errors.New("the signature is not of this key")
	}
	return nil
}

// openssl checks with the command of docs/install.md.
func openssl(t *testing.T, dir, public string) error {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, signature))
	if err != nil {
		return err
	}
	der, err := base64.StdEncoding.DecodeString(string(raw))
	if err != nil {
		return err
	}
	file := filepath.Join(t.TempDir(), "signature")
	if err := os.WriteFile(file, der, 0o600); err != nil {
		return err
	}
	return exec.Command("openssl", "dgst", "-sha256", "-verify", public, "-signature", file, filepath.Join(dir, sums)).Run()
}

func keyFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// newKey returns a key, and its forms in DER.
func newKey(t *testing.T, curve elliptic.Curve) (pkcs8, sec1 []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err = x509.MarshalPKCS8PrivateKey(key)
	sec1, err1 := x509.MarshalECPrivateKey(key)
	if err := errors.Join(err, err1); err != nil {
		t.Fatal(err)
	}
	return pkcs8, sec1
}

func TestAReleaseIsSignedAsCosignDoes(t *testing.T) {
	dir := t.TempDir()
	manifest := filepath.Join(dir, "ebb.yaml")
	if err := errors.Join(os.WriteFile(manifest, []byte("kind: List\n"), 0o600), Sums(dir)); err != nil {
		t.Fatal(err)
	}
	pkcs8, sec1 := newKey(t, elliptic.P256())
	secret, err := encrypted.Encrypt(pkcs8, []byte("word")) // as cosign does
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for kind, der := range map[string][]byte{"PRIVATE KEY": pkcs8, "EC PRIVATE KEY": sec1, "ENCRYPTED SIGSTORE PRIVATE KEY": secret, "ENCRYPTED COSIGN PRIVATE KEY": secret} {
		key, err := ReadKey(keyFile(t, kind, der), "word")
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if err := Sign(dir, key); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(filepath.Join(dir, signature))
		if err != nil || first != nil && string(now) != string(first) {
			t.Errorf("%s: another run makes other bytes: %v", kind, err)
		}
		first = now
	}

	_, theirs := newKey(t, elliptic.P256())
	key, err := ReadKey(keyFile(t, "EC PRIVATE KEY", theirs), "")
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(other, sums), []byte("x"), 0o600), Sign(other, key)); err != nil {
		t.Fatal(err)
	}
	check := func(what, public string, want bool) {
		t.Helper()
		text, err := os.ReadFile(public)
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(dir, text); (err == nil) != want {
			t.Errorf("%s: Go says %v", what, err)
		}
		if _, err := exec.LookPath("openssl"); err != nil {
			t.Log("openssl is not here")
		} else if err := openssl(t, dir, public); (err == nil) != want {
			t.Errorf("%s: openssl says %v", what, err)
		}
	}
	check("the right key", filepath.Join(dir, publicKey), true)
	check("another key", filepath.Join(other, publicKey), false)
	// Who changes a file must change its checksum, and then the signature is not of the checksums.
	if err := errors.Join(os.WriteFile(manifest, []byte("kind: Trojan\n"), 0o600), os.Remove(filepath.Join(dir, sums)),
		os.Rename(filepath.Join(dir, signature), filepath.Join(other, "kept")), Sums(dir), os.Rename(filepath.Join(other, "kept"), filepath.Join(dir, signature))); err != nil {
		t.Fatal(err)
	}
	check("a changed file", filepath.Join(dir, publicKey), false)
}

func TestAKeyThatCannotSignIsRefusedWithWhatToDo(t *testing.T) {
	pkcs8, _ := newKey(t, elliptic.P256())
	secret, err := encrypted.Encrypt(pkcs8, []byte("word"))
	if err != nil {
		t.Fatal(err)
	}
	wide, _ := newKey(t, elliptic.P384())
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := x509.MarshalPKCS8PrivateKey(crypto.PrivateKey(long))
	if err != nil {
		t.Fatal(err)
	}
	for want, file := range map[string]string{
		"COSIGN_PASSWORD":          keyFile(t, "ENCRYPTED SIGSTORE PRIVATE KEY", secret),
		"curve P-256":              keyFile(t, "PRIVATE KEY", wide),
		"is no ECDSA key":          keyFile(t, "PRIVATE KEY", rsaKey),
		"encrypted by openssl":     keyFile(t, "ENCRYPTED PRIVATE KEY", pkcs8),
		"cannot be read":           keyFile(t, "PRIVATE KEY", []byte("x")),
		"cosign generate-key-pair": keyFile(t, "PUBLIC KEY", pkcs8),
		"read the key that signs":  filepath.Join(t.TempDir(), "none"),
	} {
		if key, err := ReadKey(file, "wrong"); err == nil || key != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := Sign(t.TempDir(), new(ecdsa.PrivateKey)); err == nil || !strings.Contains(err.Error(), "not the folder of a release") {
		t.Errorf("a folder without checksums: %v", err)
	}
}
