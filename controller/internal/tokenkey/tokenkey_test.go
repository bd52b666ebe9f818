package tokenkey

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/wire"
)

func never() time.Duration { return 0 }

func rotator(t *testing.T, client *fake.Clientset, every func() time.Duration) *Rotator {
	t.Helper()
	k, err := New(t.Context(), client, "sys", every, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestTheKeyIsMadeOnceAndThenKept(t *testing.T) {
	for why, shipped := range map[string]*corev1.Secret{
		"the empty Secret shipped": {ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret}},
		"a Secret with an empty key": {ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret},
			Data: map[string][]byte{wire.TokenSecretKey: {}}},
	} {
		t.Run(why, func(t *testing.T) {
			client := fake.NewClientset(shipped)
			first := rotator(t, client, never).Current()
			if len(first) != size {
				t.Fatalf("got %d bytes", len(first))
			}
			if second := rotator(t, client, never).Current(); !bytes.Equal(first, second) {
				t.Fatal("the key changed")
			}
		})
	}
}

func TestAReplicaThatComesSecondTakesTheKeyOfTheFirst(t *testing.T) {
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret}})
	first := []byte("the first one's")
	client.PrependReactor("update", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret, Annotations: map[string]string{sinceAnnotation: "x"}},
			Data: map[string][]byte{wire.TokenSecretKey: first}}
		if err := client.Tracker().Update(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, secret, "sys"); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, wire.TokenSecret, nil)
	})
	k := &Rotator{kube: client, namespace: "sys", every: never, log: slog.New(slog.DiscardHandler)}
	if err := k.look(t.Context()); err != nil || k.Current() != nil && !bytes.Equal(k.Current(), first) {
		t.Errorf("%v, %q", err, k.Current())
	}
}

// Through a whole rotation, by two replicas of the controller, what anybody signs is accepted by
// everybody, even by those who see each change of the Secret almost a minute late.
func TestNoTokenIsRefusedWhileTheKeyIsRotated(t *testing.T) {
	for behaviour, c := range map[string]struct {
		every time.Duration
		ask   bool
	}{"asked for by the annotation": {0, true}, "by its age": {24 * time.Hour, false}} {
		t.Run(behaviour, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret}})
				every := func() time.Duration { return c.every }
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				replicas := [2]*Rotator{rotator(t, client, every), rotator(t, client, every)}
				changes := make(chan int, 100)
				for i, k := range replicas {
					go k.Run(ctx, func() { changes <- i })
				}
				read := func() *corev1.Secret {
					secret, err := client.CoreV1().Secrets("sys").Get(ctx, wire.TokenSecret, metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return secret
				}
				first := replicas[0].Current()
				if c.ask {
					secret := read()
					secret.Annotations[RotateAnnotation] = ""
					if _, err := client.CoreV1().Secrets("sys").Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				// What components know: at once, and 50 s late. Tokens of pods are half an hour
				// late.
				var history []wire.Keys
				known := func(ago int) wire.Keys { return history[max(0, len(history)-1-ago)] }
				steps := map[int]bool{}
				for range int((c.every + 2*time.Hour) / (10 * time.Second)) {
					synctest.Wait()
					history = append(history, wire.KeysOf(read().Data))
					steps[len(known(0).Accepted)] = true
					tokens := map[string]string{
						"a component":              known(0).Token("default", "hello"),
						"a component that is late": known(5).Token("default", "hello"),
						"a pod":                    known(180).Token("default", "hello"),
						"a pod of replica 1":       wire.Token(replicas[0].Current(), "default", "hello"),
						"a pod of replica 2":       wire.Token(replicas[1].Current(), "default", "hello"),
					}
					for sender, token := range tokens {
						for receiver, keys := range map[string]wire.Keys{"a component": known(0), "one that is late": known(5)} {
							if valid := func() bool {
								for _, key := range keys.Accepted {
									if wire.Token(key, "default", "hello") == token {
										return true
									}
								}
								return false
							}(); !valid {
								t.Fatalf("after %d looks %s refuses %s", len(history), receiver, sender)
							}
						}
					}
					time.Sleep(10 * time.Second)
				}
				last := read()
				if bytes.Equal(last.Data[wire.TokenSecretKey], first) || len(last.Data) != 1 || !steps[2] {
					t.Errorf("it ended with %d keys, steps %v; the key is the same: %v", len(last.Data), steps, bytes.Equal(last.Data[wire.TokenSecretKey], first))
				}
				if _, asked := last.Annotations[RotateAnnotation]; asked {
					t.Error("the annotation is still there")
				}
				cancel()
				synctest.Wait()
				if len(changes) != 2 {
					t.Errorf("%d changes were told, want one to each replica", len(changes))
				}
				for i, k := range replicas {
					if !bytes.Equal(k.Current(), last.Data[wire.TokenSecretKey]) {
						t.Errorf("replica %d has another key", i)
					}
				}
			})
		})
	}
}

// The courier and node agents have the tokens that they need, through a rotation, and cannot make
// another.
func TestOptionalPartsHaveTokensAndNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret}})
		secrets := client.CoreV1().Secrets("sys")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		k := rotator(t, client, never) // without a courier it works as well
		go k.Run(ctx, func() {})
		for _, name := range []string{wire.CourierSecret, wire.NodeAgentSecret} {
			if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		rotated := false
		before := string(k.Current())
		for i := range int(90 * time.Minute / (10 * time.Second)) {
			time.Sleep(10*time.Second + time.Millisecond)
			synctest.Wait()
			key, err := secrets.Get(ctx, wire.TokenSecret, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			has, err := secrets.Get(ctx, wire.CourierSecret, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			token := string(has.Data[wire.CourierSecretToken])
			if want := wire.KeysOf(key.Data).Token("", wire.ActivatorSubject); len(has.Data) != 1 || token != want {
				t.Fatalf("after %d looks it has %q, want %q", i, has.Data, want)
			}
			agents, err := secrets.Get(ctx, wire.NodeAgentSecret, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if tokens := wire.KeysOf(agents.Data); string(tokens.Current) != wire.KeysOf(key.Data).Token("", wire.NodeAgentSubject) || len(tokens.Accepted) != len(key.Data) {
				t.Fatalf("after %d looks agents have %q of %d keys", i, agents.Data, len(key.Data))
			}
			rotated = rotated || string(key.Data[wire.TokenSecretKey]) != before
			switch i {
			case 2: // somebody asks for a rotation
				key.Annotations[RotateAnnotation] = ""
				_, err = secrets.Update(ctx, key, metav1.UpdateOptions{})
			case 3: // and puts the key where the courier can read it, as an older release had it
				has.Data[wire.TokenSecretKey] = key.Data[wire.TokenSecretKey]
				_, err = secrets.Update(ctx, has, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !rotated {
			t.Error("the key was not rotated")
		}
	})
}

// What is wrong with the courier's Secret ends no controller.
func TestTheKeyIsThereWhateverBecomesOfTheCouriers(t *testing.T) {
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret}})
	client.PrependReactor("get", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if get, ok := a.(clienttesting.GetAction); ok && get.GetName() == wire.CourierSecret {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, wire.CourierSecret, nil)
		}
		return false, nil, nil
	})
	if key := rotator(t, client, never).Current(); len(key) != size {
		t.Errorf("%d bytes", len(key))
	}
}

// A replica whose clock is ahead does not skip the time that components have to learn of a key.
func TestAClockThatIsWrongDoesNotHurryARotation(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	secret := &corev1.Secret{Data: map[string][]byte{wire.TokenSecretKey: []byte("a"), wire.TokenSecretNext: []byte("b")}}
	secret.Annotations = map[string]string{sinceAnnotation: now.Add(-10 * time.Minute).Format(time.RFC3339Nano)}
	if done := advance(secret, 0, now, time.Second); done != "" {
		t.Errorf("a second after the next key was published: %s", done)
	}
	secret.Data = map[string][]byte{wire.TokenSecretKey: []byte("b"), wire.TokenSecretPrevious: []byte("a")}
	secret.Annotations[RotateAnnotation] = ""
	if done := advance(secret, 0, now, keep); done != "" {
		t.Errorf("while the previous key is kept: %s", done)
	}
}
