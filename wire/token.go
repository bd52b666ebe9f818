package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Names of the Secret in the system namespace that holds the keys of all tokens, and of its fields.
// TokenSecretKey signs. TokenSecretNext will, once every component knows it; TokenSecretPrevious
// did, and there can still be tokens of it.
const (
	TokenSecret         = "ebb-token-key"
	TokenSecretKey      = "key"
	TokenSecretNext     = "next"
	TokenSecretPrevious = "previous"
)

// Keys are the keys of all tokens as they are now. Without any, as before the controller has made
// one, nothing is valid.
type Keys struct {
	// Current is the key that new tokens are made with.
	Current []byte
	// Accepted are the keys whose tokens are valid.
	Accepted [][]byte
}

// KeysOf returns the keys in the content of the Secret.
func KeysOf(data map[string][]byte) Keys {
	keys := Keys{Current: data[TokenSecretKey]}
	for _, field := range []string{TokenSecretKey, TokenSecretNext, TokenSecretPrevious} {
		if key := data[field]; len(key) > 0 {
			keys.Accepted = append(keys.Accepted, key)
		}
	}
	return keys
}

// Token returns the token of a revision, or of ActivatorSubject and the like, under the current
// key; "" before there is one.
func (k Keys) Token(namespace, revision string) string {
	if len(k.Current) == 0 {
		return ""
	}
	return Token(k.Current, namespace, revision)
}

// The "revisions" of the tokens with which activators and replicas of the autoscaler prove who they
// are. With an empty namespace no revision can have them.
const (
	ActivatorSubject  = "activator"
	AutoscalerSubject = "autoscaler"
)

// Token returns what proves that a sender speaks for a revision: the HMAC-SHA256, in hex, of
// namespace and revision under key. A pod that leaks its token can lie about its own revision only.
func Token(key []byte, namespace, revision string) string {
	mac := hmac.New(sha256.New, key)
	// Neither part can hold a slash (RFC 1123 names), so no two subjects share an input.
	mac.Write([]byte(namespace + "/" + revision))
	return hex.EncodeToString(mac.Sum(nil))
}

// DrainToken is what the preStop hook shows to the queue-proxy of its own pod. It is made of the
// pod's token, and does not give that one away.
func DrainToken(token string) string { return Token([]byte(token), "", "drain") }

// ValidDrainToken reports in constant time whether given is DrainToken(token).
func ValidDrainToken(token, given string) bool {
	return token != "" && hmac.Equal([]byte(DrainToken(token)), []byte(given))
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
