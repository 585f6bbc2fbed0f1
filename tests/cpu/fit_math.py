from mpmath import *
mp.prec=160
import sys
def remez(f,w,a,b,deg,name,it=8,N=600):
    n=deg+2
    xs=[(a+b)/2+(b-a)/2*cos(pi*(n-1-i)/(n-1)) for i in range(n)]
    grid=[(a+b)/2-(b-a)/2*cos(pi*i/N) for i in range(N+1)]
    fg=[f(x) for x in grid]; wg=[w(x) for x in grid]
    for _ in range(it):
        A=matrix(n,n); B=matrix(n,1)
        for i,x in enumerate(xs):
            for j in range(deg+1): A[i,j]=x**j
            A[i,deg+1]=(-1)**i/w(x); B[i]=f(x)
        c=lu_solve(A,B)
        e=[wg[i]*(fg[i]-polyval([c[j] for j in range(deg,-1,-1)],x)) for i,x in enumerate(grid)]
        # extrema per sign run
        ext=[];cur=0
        for i in range(1,N+1):
            if sign(e[i])!=sign(e[cur]): ext.append(cur);cur=i
            elif abs(e[i])>abs(e[cur]): cur=i
        ext.append(cur)
        if len(ext)<n: break
        while len(ext)>n:
            if abs(e[ext[0]])<abs(e[ext[-1]]): ext.pop(0)
            else: ext.pop()
        xs=[grid[i] for i in ext]
    print(name,'maxerr',nstr(max(abs(v) for v in e),4))
    for j in range(deg+1): print('   ',nstr(c[j],12))
    sys.stdout.flush()
h=log(2)/2*mpf('1.01')
def ser(f,x0): return f
def fe(r): return (exp(r)-1-r)/r**2 if abs(r)>1e-20 else mpf(1)/2
remez(fe,lambda r:r**2/exp(r)+mpf('1e-9'),-h,h,4,'exp4')
def fl(x): return (log1p(x)-x+x*x/2)/x**3 if abs(x)>1e-12 else mpf(1)/3
a=sqrt(mpf(1)/2)-1-mpf('1e-3'); b=sqrt(mpf(2))-1+mpf('1e-3')
for d in (6,7,8): remez(fl,lambda x:abs(x**3/log1p(x))+mpf('1e-9') if abs(x)>1e-12 else mpf('1e-9'),a,b,d,'log%d'%d)
def ft(z):
    x=sqrt(z); return (tanh(x)-x)/x**3 if x>1e-12 else mpf(-1)/3
for d in (3,4,5): remez(ft,lambda z:(z+mpf('1e-9')),mpf(0),mpf('0.625')**2,d,'tanh%d'%d)
def fr(z):
    x=sqrt(z); return erf(x)/x-1 if x>1e-14 else 2/sqrt(pi)-1
for d in (5,6): remez(fr,lambda z:mpf(1),mpf(0),mpf('0.95')**2,d,'erf%d'%d)
for d in (7,8,9): remez(lambda t:log(erfc(t)),lambda t:erfc(t),mpf('0.9'),mpf('4.0'),d,'lerfc%d'%d)
q=(pi/4*mpf('1.01'))**2
def fs(z):
    x=sqrt(z); return (sin(x)-x)/x**3 if x>1e-12 else mpf(-1)/6
remez(fs,lambda z:z+mpf('1e-9'),mpf(0),q,3,'sin3'); remez(fs,lambda z:z+mpf('1e-9'),mpf(0),q,2,'sin2')
def fc(z):
    x=sqrt(z); return (cos(x)-1+z/2)/z**2 if x>1e-8 else mpf(1)/24
remez(fc,lambda z:z*z+mpf('1e-9'),mpf(0),q,2,'cos2'); remez(fc,lambda z:z*z+mpf('1e-9'),mpf(0),q,3,'cos3')
