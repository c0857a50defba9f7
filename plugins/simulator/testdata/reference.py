# SPDX-License-Identifier: Apache-2.0
import random, math, heapq
class Cfg:
    def __init__(s, **k):
        s.max_num_seqs=256; s.mnbt=8192; s.chunked=True; s.gmu=0.92; s.tp=1; s.prefix_hit=0.0; s.graph_max=512; s.eager=False; s.async_sched=False; s.kv_bytes=131072; s.__dict__.update(k)
H=dict(M=79.1, ctx=0.55, wgib=14.99, L=32)
def memory(c):
    act=0.30+c.mnbt*0.10/1024+c.max_num_seqs*1.5/1024
    graphs=0.0 if c.eager else 0.30+0.0012*c.graph_max
    nont=0.30+(0.3 if c.tp>1 else 0)
    kv=c.gmu*H['M']-H['wgib']/c.tp-act-graphs-nont
    slack=1.0+0.6*c.max_num_seqs/1024+0.05*c.mnbt/1024+(0.4 if c.tp>1 else 0)
    if c.gmu*H['M']>H['M']-H['ctx']: return None,'startup: free memory < requested'
    if H['M']*(1-c.gmu)<slack: return None,'CUDA OOM (capture/sampler warm-up)'
    if kv<=0: return None,'no available memory for cache blocks'
    return int(kv*2**30*c.tp/c.kv_bytes)//16, ''
def step_time(c, n_dec, dec_ctx, pre_tokens, pre_attn_tok2, n_seqs, n_out):
    L=H['L']; m=n_dec+pre_tokens; tp=c.tp
    w=5.05/tp; b=0.0172*m/tp
    gemm=(w**2.5+b**2.5)**0.4
    attn_d=(0.0125*L if n_dec else 0)+dec_ctx*(c.kv_bytes/2.9e12*1e3)/tp
    attn_p=(0.010*L if pre_tokens else 0)+pre_attn_tok2*4*4096*L/4.5e14*1e3/tp
    lm=0.37/tp+0.0016*n_out/tp
    other=0.022*L+0.13
    comm=0.0
    if tp>1:
        msg=m*4096*2
        comm=2*L*(0.0047+msg/ (0.11e9 if tp==2 else 0.090e9) *1e-0)*1.0 if False else 2*L*(0.0055+msg/1.0e8)
    gpu=gemm+attn_d+attn_p+lm+other+comm
    if c.eager or m>c.graph_max: gpu+=0.12*L
    cpu=0.3+0.014*n_seqs
    return max(gpu,cpu)+0.15 if c.async_sched else gpu+cpu
class R:
    __slots__=('arr','p','o','pre','gen','tgt','blk','ttft','done','np')
def simulate(c, arrivals, maxt=1e9, conc=None):
    blocks,err=memory(c)
    if blocks is None: return dict(error=err)
    free=blocks; wait=[]; run=[]; t=0.0; i=0; done=[]; preempt=0; nsteps=0; maxuse=0
    reqs=arrivals; N=len(reqs); closed=conc is not None; issued=0
    def mk(arr,p,o):
        r=R(); r.arr=arr; r.p=p; r.o=o; r.pre=int(p*c.prefix_hit)//16*16; r.gen=0; r.tgt=p; r.blk=0; r.ttft=None; r.done=None; r.np=0; return r
    if closed:
        for _ in range(min(conc,N)): wait.append(mk(0.0,*reqs[issued][1:])); issued+=1
    while len(done)<N:
        if not closed:
            while i<N and reqs[i][0]<=t: wait.append(mk(*reqs[i])); i+=1
        if not run and not wait:
            t=reqs[i][0]; continue
        budget=c.mnbt; n_dec=0; dctx=0; ptok=0; patt=0; n_out=0; sched=[]
        # running first (FCFS), preempt from tail on exhaustion
        k=0
        while k<len(run):
            r=run[k]
            rem=r.tgt-r.pre
            n=1 if rem<=0 else min(rem,budget)
            if budget<=0: break
            total=(r.pre+n) if rem>0 else r.tgt+1
            need=-(-total//16)-r.blk
            while need>free and len(run)>k+1:
                v=run.pop(); free+=v.blk; v.blk=0; v.tgt=v.p+v.gen; v.pre=0; v.np+=1; preempt+=1; wait.insert(0,v)
            if need>free:
                run.pop(k); free+=r.blk; r.blk=0; r.tgt=r.p+r.gen; r.pre=0; r.np+=1; preempt+=1; wait.insert(0,r); continue
            if need>0: free-=need; r.blk+=need
            budget-=n
            if rem>0: ptok+=n; patt+=n*(r.pre+n/2)
            else: n_dec+=1; dctx+=r.tgt
            sched.append((r,n,rem>0)); k+=1
        while wait and len(run)<c.max_num_seqs and budget>0:
            r=wait[0]; rem=r.tgt-r.pre; n=min(rem,budget)
            if not c.chunked and n<rem: break
            if -(-r.tgt//16)>free: break
            need=-(-(r.pre+n)//16)-r.blk
            wait.pop(0); run.append(r); free-=need; r.blk+=need; budget-=n; ptok+=n; patt+=n*(r.pre+n/2); sched.append((r,n,True))
        for r,n,ip in sched:
            if (not ip) or r.pre+n>=r.tgt: n_out+=1
        dt=step_time(c,n_dec,dctx,ptok,patt,len(sched),n_out)/1e3; t+=dt; nsteps+=1; maxuse=max(maxuse,1-free/blocks)
        for r,n,ip in sched:
            if ip:
                r.pre+=n
                if r.pre<r.tgt: continue
            r.gen+=1; r.tgt=r.p+r.gen; r.pre=r.tgt
            if r.ttft is None: r.ttft=t-r.arr+0.016
            if r.gen>=r.o:
                r.done=t; free+=r.blk; r.blk=0; run.remove(r); done.append(r)
                if closed and issued<N: wait.append(mk(t,*reqs[issued][1:])); issued+=1
    T=t-(0 if closed else 0)
    q=lambda a,p: sorted(a)[min(len(a)-1,int(p*len(a)))]
    ttft=[r.ttft for r in done]; tpot=[(r.done-r.arr-r.ttft+0.016)/(r.o-1) for r in done if r.o>1]
    return dict(blocks=blocks,kvtok=blocks*16,T=T,rps=N/T,otps=sum(r.o for r in done)/T,ttft50=q(ttft,.5),ttft99=q(ttft,.99),tpot50=q(tpot,.5)*1e3,tpot99=q(tpot,.99)*1e3,preempt=preempt,maxuse=maxuse,ms=T/nsteps*1e3)
def poisson(rate,n,pl,ol,seed=1,cv=0.0):
    rnd=random.Random(seed); t=0; out=[]
    for _ in range(n):
        t+=rnd.expovariate(rate)
        p=max(16,int(rnd.lognormvariate(math.log(pl)-cv*cv/2,cv))) if cv else pl
        o=max(2,int(rnd.lognormvariate(math.log(ol)-cv*cv/2,cv))) if cv else ol
        out.append((t,p,o))
    return out
