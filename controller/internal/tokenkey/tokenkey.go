// Package tokenkey creates and rotates the key of all tokens.
//
// Owns: the Secret ebb-token-key, and the content of courier-token and node-agent-token, if they
// are installed. Reads: them, and how often to rotate. Writes: them alone. Never: signs with a key
// before every component can know it, or takes a key away while pods can still have tokens of it.
//
// A rotation has three steps. The next key is published; nobody signs with it yet. After spread it
// becomes the current key, and the former one the previous key: tokens of both are valid, and the
// controller gives every pod a token of the current key. After keep the previous key is removed.
package tokenkey

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/wire"
)

const (
	// size of a key in bytes, which is the size of the hash.
	size = 32
	// RotateAnnotation, with any value on the Secret, asks for a rotation. The controller removes
	// it when the rotation begins.
	RotateAnnotation = "ebb.dev/rotate"
	// sinceAnnotation is when the last step was made.
	sinceAnnotation = "ebb.dev/rotated-at"
	// look is the time between two looks at the Secret.
	look = 10 * time.Second
	// spread is how long every component has to learn of the next key. They watch the Secret.
	spread = time.Minute
	// keep is how long the previous key is accepted. A kubelet shows a changed Secret to its pods
	// within minutes.
	keep = time.Hour
	// Within spreads the work of giving pods tokens of another key.
	Within = 10 * time.Minute
)

// Rotator knows the current key and rotates it. Every replica of the controller has one; the
// Secret's resource version decides which of them makes a step.
type Rotator struct {
	kube      kubernetes.Interface
	namespace string
	every     func() time.Duration
	log       *slog.Logger
	current   atomic.Pointer[[]byte]
	// step is the last step as this process sees it, and seen is when it saw it first: the clock of
	// the replica that made it may be wrong.
	step string
	seen time.Time
}

// New returns a Rotator once there is a key. every is the age at which a key is replaced, 0 for
// never.
func New(ctx context.Context, kube kubernetes.Interface, namespace string, every func() time.Duration, log *slog.Logger) (*Rotator, error) {
	k := &Rotator{kube: kube, namespace: namespace, every: every, log: log}
	for k.Current() == nil {
		if err := k.look(ctx); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Current returns the key that tokens are made with.
func (k *Rotator) Current() []byte {
	if key := k.current.Load(); key != nil {
		return *key
	}
	return nil
}

// Run rotates the key until ctx ends. It calls changed whenever there is another current key.
func (k *Rotator) Run(ctx context.Context, changed func()) error {
	return run.Every(ctx, look, func(time.Time) error {
		before := k.current.Load()
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("cannot check the token key; trying again", "error", err)
		}
		if k.current.Load() != before {
			changed()
		}
		return nil
	})
}

// look reads the Secret and makes a step if one is due.
func (k *Rotator) look(ctx context.Context) error {
	secrets := k.kube.CoreV1().Secrets(k.namespace)
	secret, err := secrets.Get(ctx, wire.TokenSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Secret %s/%s: %w", k.namespace, wire.TokenSecret, err)
	}
	now := time.Now()
	if step := secret.Annotations[sinceAnnotation]; step != k.step || k.seen.IsZero() {
		k.step, k.seen = step, now
	}
	if done := advance(secret, k.every(), now, now.Sub(k.seen)); done != "" {
		secret, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		switch {
		case apierrors.IsConflict(err):
			return nil // another replica was first
		case err != nil:
			return fmt.Errorf("write Secret %s/%s: %w", k.namespace, wire.TokenSecret, err)
		}
		k.log.Info(done, "secret", k.namespace+"/"+wire.TokenSecret)
	}
	if key := secret.Data[wire.TokenSecretKey]; string(key) != string(k.Current()) {
		k.current.Store(&key)
	}
	for name, data := range map[string]map[string][]byte{
		wire.CourierSecret:   {wire.CourierSecretToken: []byte(wire.Token(k.Current(), "", wire.ActivatorSubject))},
		wire.NodeAgentSecret: wire.NodeAgentTokens(secret.Data),
	} {
		if err := k.tell(ctx, name, data); err != nil && ctx.Err() == nil {
			k.log.Warn("an optional part has no token of the current key; trying again", "error", err)
		}
	}
	return nil
}

// tell gives a part that knows no key its tokens, if its manifest is there.
func (k *Rotator) tell(ctx context.Context, name string, data map[string][]byte) error {
	secrets := k.kube.CoreV1().Secrets(k.namespace)
	secret, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Secret %s/%s: %w", k.namespace, name, err)
	}
	if maps.EqualFunc(secret.Data, data, bytes.Equal) {
		return nil
	}
	secret.Data = data
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write Secret %s/%s: %w", k.namespace, name, err)
	}
	return nil
}

// advance makes the step of a rotation that is due and says which, "" if none is. seen is how long
// ago this process saw the last step.
func advance(secret *corev1.Secret, every time.Duration, now time.Time, seen time.Duration) (done string) {
	data, notes := secret.Data, secret.Annotations
	if data == nil {
		data = map[string][]byte{}
	}
	if notes == nil {
		notes = map[string]string{}
	}
	secret.Data, secret.Annotations = data, notes
	_, asked := notes[RotateAnnotation]
	last, err := time.Parse(time.RFC3339Nano, notes[sinceAnnotation])
	dated := err == nil
	switch {
	case len(data[wire.TokenSecretKey]) == 0:
		data[wire.TokenSecretKey] = random()
		done = "created the token key"
	case len(data[wire.TokenSecretNext]) > 0:
		if seen < spread {
			return ""
		}
		data[wire.TokenSecretPrevious], data[wire.TokenSecretKey] = data[wire.TokenSecretKey], data[wire.TokenSecretNext]
		delete(data, wire.TokenSecretNext)
		done = "rotated the token key"
	case len(data[wire.TokenSecretPrevious]) > 0:
		if dated && now.Sub(last) < keep || seen < spread {
			return ""
		}
		delete(data, wire.TokenSecretPrevious)
		done = "removed the previous token key"
	case asked || dated && every > 0 && now.Sub(last) >= every:
		data[wire.TokenSecretNext] = random()
		delete(notes, RotateAnnotation)
		done = "published the next token key"
	case !dated: // its age is counted from now
		done = "found a token key"
	default:
		return ""
	}
	notes[sinceAnnotation] = now.UTC().Format(time.RFC3339Nano)
	return done
}

func random() []byte {
	key := make([]byte, size)
	rand.Read(key) // never fails
	return key
}
