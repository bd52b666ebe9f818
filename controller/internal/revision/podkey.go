package revision

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/wire"
)

// podKeysAgain is when the Secret of a namespace is looked at again. The controller may not watch
// Secrets: one that somebody has changed is repaired then.
const podKeysAgain = 10 * time.Minute

// podKeys keeps the Secret wire.PodSecret in each namespace that has pods of a revision.
type podKeys struct {
	kube kubernetes.Interface
	key  func() []byte
	now  func() time.Time

	mutex sync.Mutex
	known map[string]knownKey // by namespace
}

type knownKey struct {
	key  string
	seen time.Time
}

// ensure makes the Secret of a namespace what it has to be. Pods that start mount it.
func (p *podKeys) ensure(ctx context.Context, namespace string) error {
	key := wire.NamespaceKey(p.key(), namespace)
	p.mutex.Lock()
	known, ok := p.known[namespace]
	p.mutex.Unlock()
	if ok && known.key == string(key) && p.now().Sub(known.seen) < podKeysAgain {
		return nil
	}
	if err := p.write(ctx, namespace, key); err != nil {
		return fmt.Errorf("key of the pods of namespace %s: %w", namespace, err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.known[namespace] = knownKey{string(key), p.now()}
	return nil
}

func (p *podKeys) write(ctx context.Context, namespace string, key []byte) error {
	secrets := p.kube.CoreV1().Secrets(namespace)
	have, err := secrets.Get(ctx, wire.PodSecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: wire.PodSecret},
			Data:       map[string][]byte{wire.TokenSecretKey: key},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil || bytes.Equal(have.Data[wire.TokenSecretKey], key) {
		return err
	}
	have.Data = map[string][]byte{wire.TokenSecretKey: key}
	_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	return err
}
