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

// Names of the Secret in the system namespace that holds the courier's token, that of
// ActivatorSubject, and of its field. The courier knows no key.
const (
	CourierSecret      = "courier-token"
	CourierSecretToken = "token"
)

// NodeAgentSecret is the name of the Secret in the system namespace that holds the tokens of
// NodeAgentSubject, in the fields of the keys that they are made with. Node agents know no key.
const NodeAgentSecret = "node-agent-token"

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
	// NodeAgentSubject is whom an autoscaler speaks as to a node agent, and has an answer of.
	NodeAgentSubject = "node-agent"
)

// NodeAgentTokens returns the content of NodeAgentSecret, of that of the Secret of keys.
func NodeAgentTokens(keys map[string][]byte) map[string][]byte {
	tokens := map[string][]byte{}
	for _, field := range []string{TokenSecretKey, TokenSecretNext, TokenSecretPrevious} {
		if key := keys[field]; len(key) > 0 {
			tokens[field] = []byte(Token(key, "", NodeAgentSubject))
		}
	}
	return tokens
}

// NamespaceKey returns the key of the tokens of a namespace's revisions: the HMAC-SHA256, in hex,
// of the namespace under key. It speaks for all revisions of the namespace and for none of others.
func NamespaceKey(key []byte, namespace string) []byte {
	return []byte(keyed(key, "namespace "+namespace))
}

// PodToken returns the token of a revision under its NamespaceKey.
func PodToken(namespaceKey []byte, revision string) string { return keyed(namespaceKey, revision) }

// Token returns what proves that a sender speaks for a revision.
func Token(key []byte, namespace, revision string) string {
	return PodToken(NamespaceKey(key, namespace), revision)
}

// bearerToken is the token that senders of version 0.1 show.
func bearerToken(key []byte, namespace, revision string) string {
	// Neither part can hold a slash (RFC 1123 names), so no two subjects share an input.
	return keyed(key, namespace+"/"+revision)
}

func keyed(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// DrainToken is what the preStop hook shows to the queue-proxy of its own pod. It depends on the
// Revision alone, so that the hook and queue-proxy agree while keys are rotated. Who can read the
// UID of a Revision or the spec of its pods can begin a drain of one of them.
func DrainToken(revisionUID string) string { return keyed([]byte("drain"), revisionUID) }

// ValidDrainToken reports in constant time whether given is token.
func ValidDrainToken(token, given string) bool {
	return token != "" && hmac.Equal([]byte(token), []byte(given))
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
