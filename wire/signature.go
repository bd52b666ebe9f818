package wire

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// signatureScheme begins the Authorization header of a signed message. The time in Unix
	// milliseconds, a nonce, the SHA-256 of the body and the signature follow.
	signatureScheme = "Ebb-HMAC"
	// SignatureWindow is how far the time of a message may be from the receiver's clock.
	SignatureWindow = 30 * time.Second
	// HeaderClock is the receiver's clock in the answer to a message of another time, signed with
	// the sender's token. The sender then follows that clock.
	HeaderClock = "Ebb-Clock"
	// rememberedNonces bounds how many messages a Guard remembers.
	rememberedNonces = 1 << 16
)

// The reasons for which a Guard rejects a message.
var (
	ErrClock    = errors.New("the clocks of sender and receiver differ")
	ErrReplayed = errors.New("the message was sent before")
)

// Signer sends messages that are signed with a token, which itself stays with the sender. The zero
// value is ready.
type Signer struct {
	ahead atomic.Int64 // nanoseconds that the receiver's clock is ahead of the own one
}

// Do signs and sends a request. It signs and sends it once more if the receiver says that its clock
// differs, and proves that it knows the token.
func (s *Signer) Do(client *http.Client, r *http.Request, token string) (*http.Response, error) {
	if token == "" {
		return nil, errors.New("there is no token yet")
	}
	if err := s.Sign(r, token); err != nil {
		return nil, err
	}
	response, err := client.Do(r)
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}
	ahead, ok := s.follow(response, token)
	if !ok {
		return response, nil
	}
	_ = response.Body.Close()
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, fmt.Errorf("read the body again: %w", err)
		}
	}
	// Not what the Signer follows by now, which may be the clock of another receiver.
	if err := sign(again, token, ahead); err != nil {
		return nil, err
	}
	return client.Do(again)
}

// Post signs and sends a body, and reads the answer. An answer other than 2xx is an error with the
// receiver's words. status is 0 if there was no answer.
func (s *Signer) Post(ctx context.Context, client *http.Client, url, token string, body []byte) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := s.Do(client, r, token)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	if response.StatusCode/100 != 2 {
		return response.StatusCode, fmt.Errorf("it answered %s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return response.StatusCode, nil
}

// Sign sets the Authorization of a request. It reads the body with GetBody.
func (s *Signer) Sign(r *http.Request, token string) error {
	return sign(r, token, time.Duration(s.ahead.Load()))
}

func sign(r *http.Request, token string, ahead time.Duration) error {
	hash := sha256.New()
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err == nil {
			_, err = io.Copy(hash, body)
		}
		if err != nil {
			return fmt.Errorf("read the body to sign: %w", err)
		}
	}
	nonce := make([]byte, 16)
	rand.Read(nonce) // never fails
	said := &Signature{time: time.Now().Add(ahead), nonce: hex.EncodeToString(nonce), body: hex.EncodeToString(hash.Sum(nil))}
	said.describe(r)
	r.Header.Set("Authorization", fmt.Sprintf("%s %d %s %s %s", signatureScheme, said.time.UnixMilli(), said.nonce, said.body, said.mac(token, "message")))
	return nil
}

// follow sets the clock to the receiver's, and returns how far that is ahead. ok is false if the
// response has none, or no valid proof.
func (s *Signer) follow(response *http.Response, token string) (ahead time.Duration, ok bool) {
	clock, mac, _ := strings.Cut(response.Header.Get(HeaderClock), " ")
	ms, err := strconv.ParseInt(clock, 10, 64)
	if err != nil || !answers(response, token, mac, "clock", clock) {
		return 0, false
	}
	ahead = time.Until(time.UnixMilli(ms))
	s.ahead.Store(int64(ahead))
	return ahead, true
}

// Answers reports whether mac, which came with the response to a signed request, is the receiver's
// Signature.Answer to that request.
func Answers(response *http.Response, token, mac string, body []byte) bool {
	return answers(response, token, mac, "answer", string(body))
}

func answers(response *http.Response, token, mac, kind, text string) bool {
	asked, err := ReadSignature(response.Request)
	return err == nil && token != "" && hmac.Equal([]byte(mac), []byte(asked.mac(token, kind, text)))
}

// Signature is what came with a message to prove who sent it.
type Signature struct {
	time        time.Time
	nonce, body string
	given       string
	// message is what the signature covers besides time, nonce and body.
	message []string
	// bearer is the token itself, from a sender of version 0.1.
	bearer string
	// token is the one that the message was signed with, set by By.
	token string
}

// ReadSignature reads the Authorization of a request. It proves nothing before By.
func ReadSignature(r *http.Request) (*Signature, error) {
	header := r.Header.Get("Authorization")
	if token := BearerToken(header); token != "" {
		return &Signature{bearer: token}, nil
	}
	parts := strings.Split(header, " ")
	if len(parts) != 5 || parts[0] != signatureScheme {
		return nil, errors.New("the message is not signed")
	}
	ms, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || len(parts[2]) != 32 || len(parts[3]) != 2*sha256.Size {
		return nil, errors.New("the signature is malformed")
	}
	s := &Signature{time: time.UnixMilli(ms), nonce: parts[2], body: parts[3], given: parts[4]}
	s.describe(r)
	return s, nil
}

func (s *Signature) describe(r *http.Request) {
	host := r.Host
	if host == "" && r.URL != nil {
		host = r.URL.Host
	}
	s.message = []string{r.Method, host, r.URL.RequestURI()}
}

// mac computes the signature. Each part has its length in front, so that two messages never have
// the same input.
func (s *Signature) mac(token, kind string, more ...string) string {
	mac := hmac.New(sha256.New, []byte(token))
	for _, part := range append(append([]string{kind, strconv.FormatInt(s.time.UnixMilli(), 10), s.nonce, s.body}, s.message...), more...) {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// By reports whether the message is signed with the token of a revision, or of ActivatorSubject and
// the like, under any of the keys.
func (s *Signature) By(keys Keys, namespace, revision string) bool {
	for _, key := range keys.Accepted {
		if s.bearer != "" && hmac.Equal([]byte(s.bearer), []byte(bearerToken(key, namespace, revision))) {
			s.token = s.bearer
			return true
		}
		if s.ByToken(Token(key, namespace, revision)) {
			return true
		}
	}
	return false
}

// ByToken reports whether the message is signed with a token.
func (s *Signature) ByToken(token string) bool {
	if s.bearer != "" || token == "" || !hmac.Equal([]byte(s.given), []byte(s.mac(token, "message"))) {
		return false
	}
	s.token = token
	return true
}

// Covers reports whether this is the signed body.
func (s *Signature) Covers(body []byte) bool {
	hash := sha256.Sum256(body)
	return s.bearer != "" || s.body == hex.EncodeToString(hash[:])
}

// Answer proves, to the sender of a message that By has found valid, that the body of an answer is
// the receiver's answer to that message.
func (s *Signature) Answer(body []byte) string { return s.mac(s.token, "answer", string(body)) }

// Guard rejects messages whose time is not the present, and repeated ones. The zero value is ready.
type Guard struct {
	// OtherClock counts messages with another time, Replayed repeated ones.
	OtherClock, Replayed atomic.Int64

	mutex sync.Mutex
	// seen holds the nonces since began, before those of the period before it.
	seen, before map[string]struct{}
	began        time.Time
}

// Check returns an error for a message that must be rejected. By must have accepted it. If the time
// is wrong, Check adds this process's clock to the header of the answer.
func (g *Guard) Check(s *Signature, answer http.Header) error {
	if s.bearer != "" {
		return nil
	}
	now := time.Now()
	if off := s.time.Sub(now); off.Abs() > SignatureWindow {
		g.OtherClock.Add(1)
		clock := strconv.FormatInt(now.UnixMilli(), 10)
		answer.Set(HeaderClock, clock+" "+s.mac(s.token, "clock", clock))
		return fmt.Errorf("%w: the message is of %s, and here it is %s", ErrClock, s.time.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	if !g.note(s.nonce, now) {
		g.Replayed.Add(1)
		return ErrReplayed
	}
	return nil
}

// note reports whether the nonce is new. It remembers at least the last half of rememberedNonces.
// Only the owner of a token can push out older ones, and could sign new messages instead.
func (g *Guard) note(nonce string, now time.Time) bool {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if len(g.seen) >= rememberedNonces/2 || now.Sub(g.began) > 2*SignatureWindow || g.seen == nil {
		g.seen, g.before, g.began = map[string]struct{}{}, g.seen, now
	}
	_, twice := g.seen[nonce]
	_, earlier := g.before[nonce]
	g.seen[nonce] = struct{}{}
	return !twice && !earlier
}
