package release

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// Files of a signed release, beside SHA256SUMS.
const (
	sums      = "SHA256SUMS"
	signature = "SHA256SUMS.sig"
	publicKey = "cosign.pub"
)

// ReadKey reads the key that signs: one of `cosign generate-key-pair` with its password, or one
// in PEM without, both ECDSA on P-256.
func ReadKey(file, password string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the key that signs: %w", err)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		der := block.Bytes
		switch block.Type {
		case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
			if der, err = encrypted.Decrypt(der, []byte(password)); err != nil {
				return nil, fmt.Errorf("the key %s cannot be decrypted with the password in COSIGN_PASSWORD: %w", file, err)
			}
		case "PRIVATE KEY", "EC PRIVATE KEY":
		case "ENCRYPTED PRIVATE KEY":
			return nil, fmt.Errorf("the key %s is encrypted by openssl, which is not supported: use `cosign generate-key-pair`, or decrypt it with `openssl pkey`", file)
		default:
			continue // such as EC PARAMETERS
		}
		return parseKey(file, der)
	}
	return nil, fmt.Errorf("the file %s has no private key in PEM: make one with `cosign generate-key-pair`, or `openssl ecparam -name prime256v1 -genkey -noout`", file)
}

func parseKey(file string, der []byte) (*ecdsa.PrivateKey, error) {
	var key any
	var err error
	if key, err = x509.ParsePKCS8PrivateKey(der); err != nil {
		if key, err = x509.ParseECPrivateKey(der); err != nil {
			return nil, fmt.Errorf("the key %s cannot be read: %w", file, err)
		}
	}
	if ec, ok := key.(*ecdsa.PrivateKey); ok && ec.Curve == elliptic.P256() {
		return ec, nil
	}
	return nil, fmt.Errorf("the key %s is no ECDSA key on the curve P-256, which cosign makes", file)
}

// Sign signs the checksums in a folder as `cosign sign-blob --key` does: base64 of an ECDSA
// signature, in ASN.1, of their SHA-256. One key signs equal checksums with equal bytes. It writes
// the public key, too, for who compares it with one from elsewhere.
func Sign(dir string, key *ecdsa.PrivateKey) error {
	text, err := os.ReadFile(filepath.Join(dir, sums))
	if err != nil {
		return fmt.Errorf("%s is not the folder of a release: %w", dir, err)
	}
	digest := sha256.Sum256(text)
	signed, err := key.Sign(nil, digest[:], crypto.SHA256) // without chance: RFC 6979
	if err != nil {
		return fmt.Errorf("sign %s: %w", sums, err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, signature), []byte(base64.StdEncoding.EncodeToString(signed)), 0o644),
		os.WriteFile(filepath.Join(dir, publicKey), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644))
}
