package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Names of the Secret in the system namespace, and of the field in it, that hold the key of all
// tokens.
const (
	TokenSecret    = "ebb-token-key"
	TokenSecretKey = "key"
)

// ActivatorSubject is the "revision" of the token with which an activator reports: with an empty
// namespace no revision can have it.
const ActivatorSubject = "activator"

// Token returns what proves that a sender speaks for a revision: the HMAC-SHA256, in hex, of
// namespace and revision under key. A pod that leaks its token can lie about its own revision only.
func Token(key []byte, namespace, revision string) string {
	mac := hmac.New(sha256.New, key)
	// Neither part can hold a slash (RFC 1123 names), so no two subjects share an input.
	mac.Write([]byte(namespace + "/" + revision))
	return hex.EncodeToString(mac.Sum(nil))
}

// ValidToken reports in constant time whether token is Token(key, namespace, revision).
// An empty key, as before the controller has made one, validates nothing.
func ValidToken(key []byte, namespace, revision, token string) bool {
	if len(key) == 0 {
		return false
	}
	return hmac.Equal([]byte(Token(key, namespace, revision)), []byte(token))
}

// DrainToken is what the preStop hook shows to the queue-proxy of its own pod. It is made of the
// pod's token, and does not give that one away.
func DrainToken(token string) string { return Token([]byte(token), "", "drain") }

// ValidDrainToken reports in constant time whether given is DrainToken(token).
func ValidDrainToken(token, given string) bool {
	return ValidToken([]byte(token), "", "drain", given)
}

// Bearer returns the value of an Authorization header for token.
func Bearer(token string) string { return "Bearer " + token }

// BearerToken returns the token of an Authorization header, "" where it has none.
func BearerToken(authorization string) string {
	scheme, token, found := strings.Cut(authorization, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
