package call

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"net/http"
	"strings"
)

// idBytes is the length of an ID before its encoding: nobody guesses 20 random bytes.
const idBytes = 20

var encoding = base64.RawURLEncoding

// NewID returns an ID that nobody can guess.
func NewID() string {
	b := make([]byte, idBytes)
	rand.Read(b) // never fails
	return encoding.EncodeToString(b)
}

// ValidID reports whether a text can be an ID.
func ValidID(text string) bool {
	b, err := encoding.DecodeString(text)
	return err == nil && len(b) == idBytes && encoding.EncodeToString(b) == text
}

// credentials are the headers by which a service knows who asks.
var credentials = []string{"Authorization", "Cookie", "X-Api-Key"}

// KeyedID returns the ID of the call with an idempotency key. It is the same for the same service,
// host, key and credentials: a key belongs to who sent it. Nobody without the secret can guess it.
func KeyedID(secret []byte, s Service, host, key string, sender http.Header) string {
	mac := hmac.New(sha256.New, secret)
	write(mac, s.Namespace, s.Name, host, key)
	for _, name := range credentials {
		if values := sender.Values(name); len(values) > 0 {
			write(mac, append([]string{name}, values...)...)
		}
	}
	return encoding.EncodeToString(mac.Sum(nil)[:idBytes])
}

// Print tells calls with the same key apart, by what the service is asked to do.
func Print(method, path string, body hash.Hash) string {
	h := sha256.New()
	write(h, method, path, string(body.Sum(nil)))
	return encoding.EncodeToString(h.Sum(nil)[:idBytes])
}

// write writes parts so that no other parts are written the same.
func write(to hash.Hash, parts ...string) {
	for _, part := range parts {
		fmt.Fprintf(to, "%d:%s", len(part), part)
	}
}

// Ticket returns what the Location of a call ends in: its ID, and the proof that the courier gave
// it out. The ID alone is known to the service and shown to those who may view its namespace.
func Ticket(secret []byte, id string) string {
	mac := hmac.New(sha256.New, secret)
	write(mac, "ticket", id)
	return id + "." + encoding.EncodeToString(mac.Sum(nil)[:idBytes])
}

// OfTicket returns the ID of a ticket; ok is false if the courier did not give it out.
func OfTicket(secret []byte, ticket string) (id string, ok bool) {
	id, _, _ = strings.Cut(ticket, ".")
	return id, ValidID(id) && hmac.Equal([]byte(Ticket(secret, id)), []byte(ticket))
}
