// Package tokenkey creates the key of the tokens by which queue-proxies prove their revision.
//
// Owns: the field "key" of the Secret ebb-token-key. Writes: that Secret, once per installation.
// Never: replaces a key, because every running pod has a token that was made with it.
package tokenkey

import (
	"context"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/wire"
)

// size of the key in bytes, which is the size of the hash.
const size = 32

// Ensure returns the key, and creates it if there is none. If two replicas start at the same time,
// the Secret's resource version decides who was first, and the other one reads again.
func Ensure(ctx context.Context, kube kubernetes.Interface, namespace string) ([]byte, error) {
	secrets := kube.CoreV1().Secrets(namespace)
	for {
		secret, err := secrets.Get(ctx, wire.TokenSecret, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, fmt.Errorf("read secret %s/%s: %w", namespace, wire.TokenSecret, err)
		}
		if !missing && len(secret.Data[wire.TokenSecretKey]) > 0 {
			return secret.Data[wire.TokenSecretKey], nil
		}
		key := make([]byte, size)
		rand.Read(key) // never fails
		if missing {
			_, err = secrets.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: wire.TokenSecret},
				Data:       map[string][]byte{wire.TokenSecretKey: key},
			}, metav1.CreateOptions{})
		} else {
			next := secret.DeepCopy()
			if next.Data == nil {
				next.Data = map[string][]byte{}
			}
			next.Data[wire.TokenSecretKey] = key
			_, err = secrets.Update(ctx, next, metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			return key, nil
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			continue
		default:
			return nil, fmt.Errorf("write secret %s/%s: %w", namespace, wire.TokenSecret, err)
		}
	}
}
